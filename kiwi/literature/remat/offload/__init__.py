"""Recomputation and copies to host memory together: planners of the literature, on any graph."""

from kiwi.literature.remat.offload.host import IDLE as IDLE
from kiwi.literature.remat.offload.host import Host as Host
from kiwi.literature.remat.offload.host import HostRun as HostRun
from kiwi.literature.remat.offload.host import OffloadSchedule as OffloadSchedule
from kiwi.literature.remat.offload.host import Transfer as Transfer
from kiwi.literature.remat.offload.host import Update as Update
from kiwi.literature.remat.offload.poet import Energy as Energy
from kiwi.literature.remat.offload.simulate import OffloadSimulation as OffloadSimulation
from kiwi.literature.remat.offload.simulate import simulate as simulate
from kiwi.literature.remat.offload.simulate import violations as violations
from kiwi.literature.remat.offload.solve import OFFLOAD_PLANNERS as OFFLOAD_PLANNERS
from kiwi.literature.remat.offload.solve import OffloadResult as OffloadResult
from kiwi.literature.remat.offload.solve import solve_offload as solve_offload
