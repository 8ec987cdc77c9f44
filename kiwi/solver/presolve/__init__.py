"""Exact reductions of a `Network`, each with a way back: `apply(net) -> Reduction`."""

from kiwi.solver.presolve.contract import contract as contract
from kiwi.solver.presolve.dominate import dominate as dominate
from kiwi.solver.presolve.join import join as join
from kiwi.solver.presolve.pipeline import presolve as presolve
from kiwi.solver.presolve.propagate import propagate as propagate
from kiwi.solver.presolve.reduction import Reduction as Reduction
from kiwi.solver.presolve.reduction import chain as chain
from kiwi.solver.presolve.reduction import repeat as repeat
from kiwi.solver.presolve.times import drop_times as drop_times
