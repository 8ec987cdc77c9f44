"""Kiwi plans how a JAX training step runs on a device mesh under a memory budget."""

import importlib
from typing import TYPE_CHECKING, Any

from kiwi import errors as errors
from kiwi.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from kiwi.api import PlannedFunction as PlannedFunction
    from kiwi.api import jit as jit
    from kiwi.api import plan as plan
    from kiwi.calls.constraints import Constraints as Constraints
    from kiwi.configurations.largest_batch import largest_batch as largest_batch
    from kiwi.configurations.search import search as search
    from kiwi.hlo.hints import hint as hint
    from kiwi.hlo.known_kernels.registry import register_kernel as register_kernel
    from kiwi.hlo.known_kernels.rules import sharding_rule as sharding_rule
    from kiwi.pipeline import layers as layers
    from kiwi.plans.memory_report import MemoryReport as MemoryReport
    from kiwi.plans.memory_report import memory_report as memory_report
    from kiwi.plans.plan import Plan as Plan
    from kiwi.profiling.cluster_probe import measure_cluster as measure_cluster
    from kiwi.profiling.recording import record_profile as record_profile
    from kiwi.saved import SavedPlan as SavedPlan
    from kiwi.saved import diff as diff
    from kiwi.saved import load_plan as load_plan
    from kiwi.stages import trace as trace

_PLACES = {
    name: module
    for module, names in {
        "api": ("PlannedFunction", "jit", "plan"),
        "calls.constraints": ("Constraints",),
        "configurations.largest_batch": ("largest_batch",),
        "configurations.search": ("search",),
        "hlo.hints": ("hint",),
        "hlo.known_kernels.registry": ("register_kernel",),
        "hlo.known_kernels.rules": ("sharding_rule",),
        "pipeline": ("layers",),
        "plans.memory_report": ("MemoryReport", "memory_report"),
        "plans.plan": ("Plan",),
        "profiling.cluster_probe": ("measure_cluster",),
        "profiling.recording": ("record_profile",),
        "saved": ("SavedPlan", "diff", "load_plan"),
        "stages": ("trace",),
    }.items()
    for name in names
}
"""For each public name, the submodule of `kiwi` that defines it."""


def __getattr__(name: str) -> Any:
    """Imports the submodule of a name on the name's first use, and returns the object.

    So a process that needs only a small part of Kiwi, such as the process of a compile check, does
    not import the rest.
    """
    if name not in _PLACES:
        raise AttributeError(f"module 'kiwi' has no attribute {name!r}")
    attribute = getattr(importlib.import_module(f"kiwi.{_PLACES[name]}"), name)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
