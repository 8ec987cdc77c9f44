"""Recomputation and copies to host memory together: planners of the literature, on any graph."""

from kiwi.solver.remat.offload.host import IDLE as IDLE
from kiwi.solver.remat.offload.host import Host as Host
from kiwi.solver.remat.offload.host import HostRun as HostRun
from kiwi.solver.remat.offload.host import OffloadSchedule as OffloadSchedule
from kiwi.solver.remat.offload.host import Transfer as Transfer
from kiwi.solver.remat.offload.host import Update as Update
from kiwi.solver.remat.offload.poet import Energy as Energy
from kiwi.solver.remat.offload.simulate import OffloadSimulation as OffloadSimulation
from kiwi.solver.remat.offload.simulate import simulate as simulate
from kiwi.solver.remat.offload.simulate import violations as violations
from kiwi.solver.remat.offload.solve import OFFLOAD_PLANNERS as OFFLOAD_PLANNERS
from kiwi.solver.remat.offload.solve import OffloadResult as OffloadResult
from kiwi.solver.remat.offload.solve import solve_offload as solve_offload
