"""Rematerialisation of a plain graph: planners of the literature and Kiwi's own."""

from kiwi.solver.remat.graph import Operator as Operator
from kiwi.solver.remat.graph import RematGraph as RematGraph
from kiwi.solver.remat.graph import Value as Value
from kiwi.solver.remat.graph import single_output_graph as single_output_graph
from kiwi.solver.remat.node_link import read_node_link as read_node_link
from kiwi.solver.remat.result import RematResult as RematResult
from kiwi.solver.remat.simulate import Simulation as Simulation
from kiwi.solver.remat.simulate import budget_from_share as budget_from_share
from kiwi.solver.remat.simulate import largest_working_set as largest_working_set
from kiwi.solver.remat.simulate import order_peak_bytes as order_peak_bytes
from kiwi.solver.remat.simulate import simulate as simulate
from kiwi.solver.remat.simulate import violations as violations
from kiwi.solver.remat.solve import PLANNERS as PLANNERS
from kiwi.solver.remat.solve import Search as Search
from kiwi.solver.remat.solve import solve as solve
