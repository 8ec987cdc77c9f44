"""Devices, links, shardings of tensors, and the price of resharding."""

from kiwi.mesh.assignment import Assignment as Assignment
from kiwi.mesh.assignment import AxisLinks as AxisLinks
from kiwi.mesh.assignment import Cluster as Cluster
from kiwi.mesh.assignment import best_assignment as best_assignment
from kiwi.mesh.collective_kinds import KINDS as KINDS
from kiwi.mesh.collectives import Collective as Collective
from kiwi.mesh.collectives import LinearCost as LinearCost
from kiwi.mesh.collectives import collective as collective
from kiwi.mesh.collectives import linear_costs as linear_costs
from kiwi.mesh.device_mesh import DeviceMesh as DeviceMesh
from kiwi.mesh.device_mesh import axes_of_mesh as axes_of_mesh
from kiwi.mesh.hardware import CATALOGUE as CATALOGUE
from kiwi.mesh.hardware import Hardware as Hardware
from kiwi.mesh.hardware import Link as Link
from kiwi.mesh.hardware import hardware as hardware
from kiwi.mesh.moves import SLICE as SLICE
from kiwi.mesh.moves import enumerate_shardings as enumerate_shardings
from kiwi.mesh.profile_entries import CollectiveEntry as CollectiveEntry
from kiwi.mesh.profile_entries import Environment as Environment
from kiwi.mesh.profile_entries import OperatorEntry as OperatorEntry
from kiwi.mesh.profile_entries import Price as Price
from kiwi.mesh.profile_entries import Provenance as Provenance
from kiwi.mesh.profile_table import ProfileTable as ProfileTable
from kiwi.mesh.resharding import ReshardingStep as ReshardingStep
from kiwi.mesh.resharding import ReshardingTable as ReshardingTable
from kiwi.mesh.sharding import TensorSharding as TensorSharding
