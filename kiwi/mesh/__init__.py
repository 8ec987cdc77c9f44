"""Device meshes, shardings over them, and what moving data between shardings costs."""

import warnings
from typing import Any

from kiwi.mesh.assignment import Assignment, AxisLinks, best_assignment
from kiwi.mesh.cluster import Cluster
from kiwi.mesh.collective_kinds import KINDS
from kiwi.mesh.collectives import (
    Collective,
    LinearCost,
    all_gather,
    all_reduce,
    all_to_all,
    collective,
    collective_permute,
    linear_costs,
    reduce_scatter,
)
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.enumeration import enumerate_shardings
from kiwi.mesh.hardware import CATALOGUE, Hardware, Link, hardware
from kiwi.mesh.moves import SLICE
from kiwi.mesh.price import Price, Provenance
from kiwi.mesh.profile_entries import CollectiveEntry, Environment, OperatorEntry
from kiwi.mesh.profile_table import ProfileTable
from kiwi.mesh.resharding import ReshardingStep, ReshardingTable
from kiwi.mesh.sharding import TensorSharding

__all__ = [
    "CATALOGUE",
    "KINDS",
    "SLICE",
    "Assignment",
    "AxisLinks",
    "Cluster",
    "Collective",
    "CollectiveEntry",
    "DeviceMesh",
    "Environment",
    "Hardware",
    "LinearCost",
    "Link",
    "OperatorEntry",
    "Price",
    "ProfileTable",
    "Provenance",
    "ReshardingStep",
    "ReshardingTable",
    "TensorSharding",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "best_assignment",
    "collective",
    "collective_permute",
    "enumerate_shardings",
    "hardware",
    "linear_costs",
    "reduce_scatter",
]


def __getattr__(name: str) -> Any:
    if name == "Step":  # kept for one release
        warnings.warn("kiwi.mesh.Step is ReshardingStep now.", DeprecationWarning, stacklevel=2)
        return ReshardingStep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
