"""Kiwi plans how a JAX training step runs on a device mesh under a memory budget."""

import importlib
from typing import TYPE_CHECKING, Any

from kiwi import deprecated
from kiwi import errors as errors
from kiwi.api import PlannedFunction as PlannedFunction
from kiwi.api import jit as jit
from kiwi.api import plan as plan
from kiwi.calls.constraints import Constraints as Constraints
from kiwi.configurations.largest_batch import largest_batch as largest_batch
from kiwi.configurations.search import search as search
from kiwi.hlo.hints import hint as hint
from kiwi.hlo.kernel_rules import sharding_rule as sharding_rule
from kiwi.pipeline import layers as layers
from kiwi.plans.memory_report import MemoryReport as MemoryReport
from kiwi.plans.memory_report import memory_report as memory_report
from kiwi.plans.plan import Plan as Plan
from kiwi.saved import SavedPlan as SavedPlan
from kiwi.saved import diff as diff
from kiwi.saved import load_plan as load_plan
from kiwi.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from kiwi.profiling.cluster_probe import measure_cluster as measure_cluster
    from kiwi.profiling.recording import record_profile as record_profile

_MEASURING = {"measure_cluster": "cluster_probe", "record_profile": "recording"}

deprecated.install()


def __getattr__(name: str) -> Any:
    """Imports what measures devices on its first use: planning needs none of it."""
    if name not in _MEASURING:
        raise AttributeError(f"module 'kiwi' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kiwi.profiling.{_MEASURING[name]}"), name)
