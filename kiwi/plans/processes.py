"""Several processes that run one plan: do they have the same one?

Each process of `jax.distributed` traces and plans by itself, or reads the plan from a file. What
they then compile has to be one program: with different ones they wait for each other's collectives
for ever. So before a plan is compiled for devices of several processes, these compare a digest
of it, a few bytes each.
"""

import hashlib
import json

import jax
import numpy as np
from jax.experimental import multihost_utils

from kiwi.errors import PlanMismatchError
from kiwi.plans.fingerprint import fingerprint
from kiwi.plans.record import PlanRecord


def plan_digest(plan: PlanRecord) -> bytes:
    """SHA-256 of all that the planned step is emitted from; equal in every process."""
    execution = plan.execution
    parts = (
        fingerprint(execution.units.graph.program).values,
        execution.mesh.shape,
        execution.mesh.axis_names,
        execution.schedule.steps,
        [s.dims for s in execution.argument_shardings],
        [None if s is None else s.dims for s in execution.result_shardings],
        sorted((value, s.dims) for value, s in execution.layouts.items()),
        [[s.dims for s in unit] for unit in execution.reads],
    )
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def check_same_plan(plan: PlanRecord, mesh: jax.sharding.Mesh) -> None:
    """Compares the plan with that of all other processes; each of them has to call this.

    Nothing happens if the mesh's devices all belong to this process.

    **Raises:** `PlanMismatchError`, in every process, if two of them differ.
    """
    if {d.process_index for d in mesh.devices.flat} <= {jax.process_index()}:
        return
    own = np.frombuffer(plan_digest(plan), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(own))
    others = [k for k, digest in enumerate(every) if not np.array_equal(digest, every[0])]
    if not others:
        return
    raise PlanMismatchError(
        f"Processes {', '.join(map(str, others))} have another plan than process 0.",
        cause="They were given other functions, arguments or options, or the time limit ended "
        "the search at different points.",
        suggestion="Save the plan in process 0, plan.save(path), and run "
        "kiwi.load_plan(path).apply(fun) in all; or a larger time_limit_seconds or gap.",
    )
