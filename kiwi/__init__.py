"""Kiwi plans how a JAX training step runs on a device mesh under a memory budget."""

from kiwi import deprecated
from kiwi import errors as errors
from kiwi.api import PlannedFunction as PlannedFunction
from kiwi.api import jit as jit
from kiwi.api import plan as plan
from kiwi.calls.constraints import Constraints as Constraints
from kiwi.hlo.hints import hint as hint
from kiwi.hlo.kernel_rules import sharding_rule as sharding_rule
from kiwi.plans.memory_report import MemoryReport as MemoryReport
from kiwi.plans.memory_report import memory_report as memory_report
from kiwi.plans.plan import Plan as Plan
from kiwi.profiling.cluster_probe import measure_cluster as measure_cluster
from kiwi.profiling.recording import record_profile as record_profile
from kiwi.saved import SavedPlan as SavedPlan
from kiwi.saved import diff as diff
from kiwi.saved import load_plan as load_plan
from kiwi.version import VERSION as __version__  # noqa: F401

deprecated.install()
