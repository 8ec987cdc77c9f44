"""The programs that a plan emits. No other module here uses more than Kiwi's public interface.

A program is the StableHLO that is sent to the target's compiler, without source locations.
"""

import hashlib
import re
from collections import Counter
from typing import Any

import kiwi
from kiwi.campaign.barrier_levels import with_needed_barriers
from kiwi.hlo import jax_internals

_OPERATOR = re.compile(r"\b(?:stablehlo|sdy|mhlo|chlo)\.([a-z_]+)")

COUNTED = ("optimization_barrier", "sharding_constraint", "custom_call", "dot_general", "while")
"""Operators that a digest counts, to show at a glance what changed in a program."""


def programs(plan: kiwi.Plan, platform: str) -> dict[str, Any]:
    """Returns digests of the planned program, and of the program with only the needed barriers. The
    second is None if the compiler needs a barrier at every step.

    `platform`: the jax platform that the programs are lowered for.
    """
    needed = with_needed_barriers(plan)
    return {
        "planned": _digest(plan, platform),
        "needed barriers": None if needed is None else _digest(needed, platform),
    }


def _digest(plan: kiwi.Plan, platform: str) -> str:
    step = plan.step
    jitted = step.jit(step.mesh.abstract_mesh())
    with jax_internals.custom_partitioning_without_devices(), jax_internals.assumed_gpu():
        traced = jitted.trace(*step.arguments)
        return text_digest(traced.lower(lowering_platforms=(platform,)).as_text())


def text_digest(text: str) -> str:
    """Returns the number of lines of a module, the number of each operator in `COUNTED`, and a
    hash."""
    operators = Counter(_OPERATOR.findall(text))
    counts = ", ".join(f"{operators[name]} {name}" for name in COUNTED if operators[name])
    hashed = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{len(text.splitlines())} lines, {counts}: {hashed}"
