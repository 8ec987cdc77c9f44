"""Plans one program in this process; see `benchmarks.planning_time`."""

import dataclasses
import json
import os
import sys
import time
from typing import Any

import jax

from benchmarks.planning_time.programs import PROGRAMS

MESH_SHAPE, PROFILE = (2, 4), "h100-sxm"


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Plans, then compiles the plain step. Returns the seconds and figures of both."""
    jax.config.update("jax_num_cpu_devices", 8)
    import kiwi
    from kiwi.solver import warm_up
    from kiwi.xla.compilers import compile_for, resolved

    program = PROGRAMS[request["program"]]
    step, args = program.make(request["layers"])
    warm_up()  # Compiles the loops that are compiled once on a machine.
    before = _seconds()
    plan = kiwi.plan(
        step,
        *args,
        mesh_shape=MESH_SHAPE,
        profile=PROFILE,
        memory_budget=request["budget_bytes"],
        donate_argnums=program.donated,
        plan_cache=False,
    )
    own_seconds, other_seconds, wall_seconds = _since(before)
    result, compiled = plan.solve_result, plan.compiled
    figures: dict[str, Any] = {
        "cpu_seconds": own_seconds,
        "processes_cpu_seconds": other_seconds,
        "seconds": wall_seconds,
        "step_seconds": plan.estimate.step_seconds,
        "compiled_step_seconds": None if compiled is None else compiled.step_seconds,
        "peak_bytes": plan.peak_bytes,
        "objective": result.objective,
        "gap": result.gap,
        "work": result.work,
        "programs": sum(trial.compiled_peak_bytes is not None for trial in plan.history),
        "operators": len(plan.decisions),
    }
    timings = getattr(plan, "timings", ())  # Versions before 2026-11-29 have none.
    figures["timings"] = {timing.stage: round(timing.cpu_seconds, 2) for timing in timings}
    tree = plan.traced.call.tree

    def flat(*leaves: Any) -> list[Any]:
        own_args, own_kwargs = jax.tree.unflatten(tree, leaves)
        return jax.tree.leaves(step(*own_args, **own_kwargs))

    target, _ = resolved("auto", plan.mesh.hardware)
    before = _seconds()
    compile_for(str(target), dataclasses.replace(plan.step, function=flat))
    own_seconds, other_seconds, _ = _since(before)
    return {**figures, "target": target, "xla_cpu_seconds": round(own_seconds + other_seconds, 2)}


def _seconds() -> tuple[float, float, float]:
    """Returns processor seconds of this process, processor seconds of ended child processes, and
    wall seconds."""
    times = os.times()
    return time.process_time(), times.children_user + times.children_system, time.monotonic()


def _since(before: tuple[float, ...]) -> list[float]:
    return [round(now - then, 2) for now, then in zip(_seconds(), before, strict=True)]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
