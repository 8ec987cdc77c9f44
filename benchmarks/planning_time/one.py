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
    """Plans, then compiles the plain step; seconds and what was found."""
    jax.config.update("jax_num_cpu_devices", 8)
    import kiwi
    from kiwi.solver import warm_up
    from kiwi.xla.compilers import compile_for, resolved

    program = PROGRAMS[request["program"]]
    step, args = program.make(request["layers"])
    warm_up()  # Loops that are compiled once on a machine.
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
    found: dict[str, Any] = {
        "cpu_seconds": own_seconds,
        "processes_cpu_seconds": other_seconds,
        "seconds": wall_seconds,
        "step_seconds": plan.estimate.step_seconds,
        "compiled_step_seconds": None if compiled is None else compiled.step_seconds,
        "peak_bytes": plan.peak_bytes,
        "objective": result.objective,
        "gap": result.gap,
        "work": result.work,
        "programs": sum(t.compiled_peak_bytes is not None for t in plan.history),
        "operators": len(plan.decisions),
    }
    timings = getattr(plan, "timings", ())  # Versions before 2026-11-29 have none.
    found["timings"] = {each.stage: round(each.cpu_seconds, 2) for each in timings}
    tree = plan.traced.call.tree

    def flat(*leaves: Any) -> list[Any]:
        own_args, own_kwargs = jax.tree.unflatten(tree, leaves)
        return jax.tree.leaves(step(*own_args, **own_kwargs))

    target, _ = resolved("auto", plan.mesh.hardware)
    before = _seconds()
    compile_for(str(target), dataclasses.replace(plan.step, function=flat))
    own_seconds, other_seconds, _ = _since(before)
    return {**found, "target": target, "xla_cpu_seconds": round(own_seconds + other_seconds, 2)}


def _seconds() -> tuple[float, float, float]:
    """Of the processor in this process and in those that have ended, and by the wall's clock."""
    times = os.times()
    return time.process_time(), times.children_user + times.children_system, time.monotonic()


def _since(before: tuple[float, ...]) -> list[float]:
    return [round(now - then, 2) for now, then in zip(_seconds(), before, strict=True)]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
