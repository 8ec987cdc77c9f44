"""The effect of XLA:GPU's options on the compiled peak of plans, without a GPU.

Each model of the fidelity benchmark has one plan on a mesh, under a share of its predicted peak
without a budget. The plan is compiled under several sets of options. `kiwi.xla.gpu.compiler` uses
the options that this comparison selected.

    python -m benchmarks.paper.gpu_options --out benchmarks/paper/results/gpu_options.json
"""

import datetime
import json
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from benchmarks.fidelity.measure import Case, make_plan
from examples.baselines import UNLIMITED
from kiwi.xla.gpu.compiler import GPU_CHECK_OPTIONS, GPU_COMPILER_OPTIONS, compile_only_devices
from kiwi.xla.gpu.target_config import target_config

_MODELS = flags.DEFINE_list("models", ["mlp", "gpt", "encoder_decoder"], "Models of the benchmark.")
_MESH = flags.DEFINE_string("mesh", "2x4", "Mesh shape.")
_SHARE = flags.DEFINE_float("share", 0.55, "Budget, as a part of the predicted free peak.")
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "The GPU.")
_OUT = flags.DEFINE_string("out", "benchmarks/paper/results/gpu_options.json", "Where results go.")

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "latency hiding": {"xla_gpu_enable_latency_hiding_scheduler": True},
    "synchronous but all-to-all": {
        "xla_gpu_disable_async_collectives": "ALLREDUCE,ALLGATHER,REDUCESCATTER,COLLECTIVEPERMUTE"
    },
    "synchronous": GPU_COMPILER_OPTIONS,
    "synchronous, not combined": {
        **GPU_COMPILER_OPTIONS,
        **{
            f"xla_gpu_{kind}_combine_threshold_bytes": 256 * 2**10
            for kind in ("all_gather", "all_reduce", "reduce_scatter")
        },
    },
}


def main(_: list[str]) -> None:
    """Writes predicted and compiled peaks in bytes."""
    jax.config.update("jax_platforms", "cpu")
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "profile": _PROFILE.value,
        "mesh": _MESH.value,
        "share": _SHARE.value,
        "rows": {},
    }
    for model in _MODELS.value:
        results["rows"][model] = _row(model)
        print(model, json.dumps(results["rows"][model]), flush=True)
        Path(_OUT.value).write_text(json.dumps(results, indent=1) + "\n")


def _row(model: str) -> dict[str, int]:
    shape = tuple(map(int, _MESH.value.split("x")))
    # The plan has no check, so that no options influence the plan that they are compared on.
    case = Case(model, shape, None, _PROFILE.value)
    free = make_plan(case, UNLIMITED).estimate.peak_bytes
    plan = make_plan(case, int(_SHARE.value * free))
    devices = compile_only_devices(target_config(plan.mesh.hardware), plan.mesh.size)
    mesh = plan.mesh.jax_mesh(devices)
    row = {"predicted": plan.estimate.peak_bytes}
    for name, options in OPTIONS.items():
        compiled = plan.step.jit(mesh, _with_check_options(options)).lower(*plan.step.arguments)
        stats = compiled.compile().memory_analysis()
        held = stats.argument_size_in_bytes + stats.output_size_in_bytes
        row[name] = held + stats.temp_size_in_bytes - stats.alias_size_in_bytes
    return row


def _with_check_options(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in GPU_CHECK_OPTIONS.items() if k not in GPU_COMPILER_OPTIONS} | options


if __name__ == "__main__":
    app.run(main)
