"""Rematerialisation of a plain graph: planners of the literature, and Kiwi's own."""

from kiwi.literature.remat.graph import Operator as Operator
from kiwi.literature.remat.graph import RematGraph as RematGraph
from kiwi.literature.remat.graph import Value as Value
from kiwi.literature.remat.graph import single_output_graph as single_output_graph
from kiwi.literature.remat.node_link import read_node_link as read_node_link
from kiwi.literature.remat.result import RematResult as RematResult
from kiwi.literature.remat.simulate import Simulation as Simulation
from kiwi.literature.remat.simulate import budget_from_share as budget_from_share
from kiwi.literature.remat.simulate import largest_working_set as largest_working_set
from kiwi.literature.remat.simulate import order_peak_bytes as order_peak_bytes
from kiwi.literature.remat.simulate import simulate as simulate
from kiwi.literature.remat.simulate import violations as violations
from kiwi.literature.remat.solve import PLANNERS as PLANNERS
from kiwi.literature.remat.solve import Search as Search
from kiwi.literature.remat.solve import solve as solve
