"""All planners by name: what each decides, how it is found, and on which meshes.

The one table that settings, errors, the command line and the tests of the documentation read. A
planner is found in one of four `Way`s; `kiwi.planners.planning` goes it.
"""

from dataclasses import dataclass
from enum import Enum

from kiwi.errors import InvalidMeshError, UnknownPlannerError
from kiwi.mesh import DeviceMesh
from kiwi.planners.recomputation_rules import (
    Rule,
    all_but_matmuls,
    attention_core,
    rematerialised_first,
)


class Way(Enum):
    """How a plan is found.

    - `PROBLEM`: as a solution of the `Problem` of the step (`kiwi.planners.closed_loop`).
    - `MODEL`: by one of the paper's models (`kiwi.planners.paper_models`).
    - `CHAIN`: sharding, then recomputation of the sharded chain (`kiwi.planners.two_stage`).
    - `SCHEDULE`: by a planner of `kiwi.solver.remat`, on one device (`kiwi.planners.one_device`).
    """

    PROBLEM = "problem"
    MODEL = "model"
    CHAIN = "chain"
    SCHEDULE = "schedule"


@dataclass(frozen=True)
class Planner:
    """A planner.

    - `description`: what it decides, on one line.
    - `recomputes`: whether its problem offers recomputation.
    - `rule`: what it recomputes whatever the solver says; None leaves that to the solver.
    - `opens_loops`: whether it plans the bodies of scans, see `kiwi.hlo.loops`.
    - `model`: the formulation that it solves, of `kiwi.solver.formulations`.
    """

    name: str
    description: str
    way: Way = Way.PROBLEM
    recomputes: bool = False
    rule: Rule | None = None
    opens_loops: bool = False
    model: str = ""

    def check(self, mesh: DeviceMesh) -> None:
        """Raises `InvalidMeshError` where it cannot plan for the mesh."""
        if self.way is Way.SCHEDULE and mesh.size != 1:
            raise InvalidMeshError(
                f"The planner {self.name!r} plans for one device, the mesh has {mesh.size}.",
                suggestion='mesh_shape=(1,), or planner="joint", which shards too.',
            )


DEFAULT_PLANNER = "joint"

_SCHEDULES = {
    "checkmate": "the best schedule by stages, an integer program",
    "checkmate-lp": "a schedule by stages, rounded from a linear program",
    "fastsa": "schedules by simulated annealing, quickly",
    "hiremate": "an integer program over recursive groups",
    "keep-all": "nothing: the given order",
    "moccasin": "at most two computations each, by constraint programming",
    "order-only": "the order alone",
    "remat": "schedules by many annealing runs and reordering",
    "rk-checkmate": "the best schedule by stages of kept inputs and results",
    "rockmate": "rk-checkmate within blocks, rotor over them",
    "rotor": "the best persistent schedule of a chain",
}

_ALL = (
    Planner(
        DEFAULT_PLANNER,
        "sharding and recomputation together",
        recomputes=True,
        opens_loops=True,
    ),
    Planner("alpa", "sharding alone (Zheng et al., 2022)", opens_loops=True),
    Planner("xla", "nothing: values are sharded as XLA does by itself"),
    Planner(
        "alpa+dots",
        "sharding, with all but matrix products recomputed",
        rule=all_but_matmuls,
    ),
    Planner("alpa+megatron", "sharding, with the attention core recomputed", rule=attention_core),
    Planner(
        "two-pass",
        "recomputation of unsharded values, then sharding",
        rule=rematerialised_first,
    ),
    Planner(
        "two-stage",
        "sharding for growing budgets, then recomputation by rotor (Liu et al., 2023)",
        Way.CHAIN,
    ),
    Planner("kiwi-full", "the paper's full model, for small steps", Way.MODEL, model="full"),
    Planner("kiwi-reduced", "the paper's reduced model", Way.MODEL, model="reduced"),
    *(Planner(n, f"on one device: {d}", Way.SCHEDULE) for n, d in _SCHEDULES.items()),
)

PLANNERS: dict[str, Planner] = {planner.name: planner for planner in _ALL}
"""Every planner by name, in the order in which they are listed."""


def planner_named(name: str) -> Planner:
    """The planner of a name.

    **Raises:** `UnknownPlannerError`, which lists all.
    """
    if name not in PLANNERS:
        known = ", ".join(repr(n) for n in PLANNERS)
        raise UnknownPlannerError(f"There is no planner {name!r}.", suggestion=f"One of {known}.")
    return PLANNERS[name]


def described() -> str:
    """Every planner with what it decides, for a reader at a terminal."""
    return "; ".join(f"{p.name}: {p.description}" for p in PLANNERS.values())
