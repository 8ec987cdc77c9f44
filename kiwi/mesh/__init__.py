"""Device meshes, shardings over them, and what moving data between shardings costs."""

from kiwi.mesh.assignment import Assignment, AxisLinks, best_assignment
from kiwi.mesh.cluster import Cluster
from kiwi.mesh.collectives import (
    KINDS,
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
from kiwi.mesh.greedy import greedy_path
from kiwi.mesh.hardware import CATALOGUE, Hardware, Link, hardware
from kiwi.mesh.moves import SLICE
from kiwi.mesh.partitioner import can_scatter, moved_itemsize, reduction_collectives
from kiwi.mesh.price import Price, Provenance
from kiwi.mesh.probe import measure_cluster
from kiwi.mesh.profile_table import (
    CollectiveEntry,
    Environment,
    OperatorEntry,
    ProfileTable,
)
from kiwi.mesh.reduction import reduction_path
from kiwi.mesh.resharding import ReshardingTable, Step
from kiwi.mesh.sharding import TensorSharding
from kiwi.mesh.survey import record_profile
from kiwi.mesh.target_config import target_config

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
    "ReshardingTable",
    "Step",
    "TensorSharding",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "best_assignment",
    "can_scatter",
    "collective",
    "collective_permute",
    "enumerate_shardings",
    "greedy_path",
    "hardware",
    "linear_costs",
    "measure_cluster",
    "moved_itemsize",
    "record_profile",
    "reduce_scatter",
    "reduction_collectives",
    "reduction_path",
    "target_config",
]
