"""The solver: chooses one option per node at the least cost under a memory limit, and proves a
lower bound of that cost."""

from kiwi.solver.evaluate import Evaluation as Evaluation
from kiwi.solver.evaluate import evaluate as evaluate
from kiwi.solver.problem import Edge as Edge
from kiwi.solver.problem import Interval as Interval
from kiwi.solver.problem import Node as Node
from kiwi.solver.problem import Problem as Problem
from kiwi.solver.result import Progress as Progress
from kiwi.solver.result import SolveResult as SolveResult
from kiwi.solver.result import SolveStatus as SolveStatus
from kiwi.solver.solve import SOLVERS as SOLVERS
from kiwi.solver.solve import solve as solve
from kiwi.solver.warm_up import warm_up as warm_up
