"""One of several processes that train together, started by `test_distributed`.

python distributed_worker.py PROCESS PROCESSES PORT FOLDER

Prints a line of JSON: the losses under plans made in each process and under process 0's saved plan,
with the batch divided over the processes; the error if processes have different plans; and the
losses of a pipeline whose stages are on the devices of all processes.
"""

import json
import sys
from functools import partial
from pathlib import Path

import jax

INDEX, COUNT, PORT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8 // COUNT)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{PORT}", COUNT, INDEX)

from jax.experimental import multihost_utils  # noqa: E402

import kiwi  # noqa: E402
from examples import mlp  # noqa: E402
from kiwi.errors import PlanMismatchError  # noqa: E402
from tests.programs.test_distributed import (  # noqa: E402
    CONFIG,
    OPTIONS,
    PIPELINE,
    pipelined_losses,
    train,
)
from tests.test_pipeline import SLOW, train_step  # noqa: E402


def of_all_processes(batch):
    """Returns the global batch. Each process contributes its part, as a data loader would."""
    devices = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("d"))
    rows = CONFIG.batch // COUNT
    return {
        name: jax.make_array_from_process_local_data(
            sharding, jax.device_get(x)[INDEX * rows : (INDEX + 1) * rows], x.shape
        )
        for name, x in batch.items()
    }


def different_plans(step):
    """Returns the error of a process whose plan differs from the plans of the others."""
    cut = jax.sharding.PartitionSpec("x")
    own = {"in_shardings": (None, cut)} if INDEX else {}
    try:
        kiwi.jit(step, **OPTIONS, **own)(mlp.make_state(CONFIG), mlp.make_batch(CONFIG))
    except PlanMismatchError as error:
        return error.what
    return ""


step = mlp.make_train_step(CONFIG)
planned = kiwi.jit(step, **OPTIONS)
state, batch = mlp.make_state(CONFIG), of_all_processes(mlp.make_batch(CONFIG))
found = {"own": train(planned, state, batch)}
if INDEX == 0:
    planned.plan(state, batch).save(FOLDER / "plan.json")
multihost_utils.sync_global_devices("saved")
applied = kiwi.load_plan(FOLDER / "plan.json").apply(step)
found["loaded"] = train(applied, mlp.make_state(CONFIG), batch)
found["different"] = different_plans(step)
options = {"mesh_shape": (8,), "profile": SLOW, "verify": None, "effort": "quick"}
found["pipelined"] = pipelined_losses(kiwi.jit(partial(train_step, **PIPELINE), **options))
print(json.dumps(found), flush=True)
