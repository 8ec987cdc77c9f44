"""Recipes of random programs, and hypothesis' strategies that draw them.

A recipe is plain data, so that hypothesis can shrink it and its `repr` reproduces a failure:

    recipe ::= shape dtype mode mesh budget ... step*
    step   ::= operation choice step*

`choice` is an integer whose digits choose operands, axes and sizes (`Digits`). The steps below a
step are the body of a region (a scan, a branch, a custom derivative).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from benchmarks.programs.operations import OPERATIONS
from benchmarks.programs.regions import CHOICES, LOOPS, REGIONS
from benchmarks.programs.steps import Step

MOST_STEPS = 7
MOST_BODY_STEPS = 3
MESHES = ((2, 4), (8,), (2, 2, 2), (1, 1), (4, 2), (2,), (1, 8), (3, 2))
_AROUND = ("scan_layers", "accumulate", "checkpoint", "vmapped", "custom_vjp", "scan_time")
PLANNERS = ("joint", "joint", "joint", "alpa", "two-pass", "xla")


@dataclass(frozen=True)
class Recipe:
    """A random program, and the options of its plan.

    - `shape`: the shape of the first input, batch first.
    - `mode`: "forward" returns values, "gradient" loss and gradients, "train" updated parameters.
    - `raw_key`: whether random numbers come from `jax.random.PRNGKey` instead of `jax.random.key`.
    - `budget_share`: the budget as a share of the peak of the plan without a limit; None is no
      limit.
    - `donate`: whether the step's state is donated (mode "train").
    - `verify`: whether the plan is compiled and checked.
    """

    steps: tuple[Step, ...]
    shape: tuple[int, ...] = (8, 16)
    dtype: str = "float32"
    mode: str = "gradient"
    raw_key: bool = False
    mesh_shape: tuple[int, ...] = (2, 4)
    budget_share: float | None = None
    donate: bool = False
    verify: bool = False
    respect_user_checkpoint: bool = False
    planner: str = "joint"


def steps(names: Sequence[str], depth: int, most: int) -> st.SearchStrategy[tuple[Step, ...]]:
    """Draws steps of the named operations. Bodies of regions have a depth of `depth` - 1."""
    plain = [n for n in names if n in OPERATIONS]
    regions = [n for n in names if n in REGIONS]
    choices = st.integers(0, 2**24 - 1)
    step = st.builds(Step, st.sampled_from(plain), choices)
    if depth > 0 and regions:
        body = steps(names, depth - 1, MOST_BODY_STEPS)
        step |= st.builds(Step, st.sampled_from(regions), choices, body)
    return st.lists(step, min_size=1, max_size=most).map(tuple)


def choosing(depth: int = 1) -> st.SearchStrategy[tuple[Step, ...]]:
    """Draws steps with one `while` or conditional, which may be inside another region."""
    plain, numbers = [*OPERATIONS], st.integers(0, 2**24 - 1)
    before, behind = (
        st.lists(st.builds(Step, st.sampled_from(plain), numbers), max_size=2) for _ in range(2)
    )
    body = steps([*OPERATIONS, *sorted(CHOICES)], depth, 2)
    chosen = st.builds(Step, st.sampled_from(sorted(CHOICES)), numbers, body)
    inside = chosen.map(lambda step: (step,))
    chosen |= st.builds(Step, st.sampled_from(_AROUND), numbers, inside)
    return st.builds(lambda a, b, c: (*a, b, *c), before, chosen, behind)


def choosing_recipes() -> st.SearchStrategy[Recipe]:
    """Draws small recipes with a `while` or a conditional that a planner opens."""
    return st.builds(
        Recipe,
        steps=choosing(),
        shape=st.lists(st.sampled_from((8, 4, 16, 6)), min_size=1, max_size=3).map(tuple),
        dtype=st.sampled_from(("float32", "float32", "bfloat16")),
        mode=st.sampled_from(("gradient", "train", "forward")),
        mesh_shape=st.sampled_from(((2, 4), (8,), (2,), (2, 2, 2))),
        budget_share=st.sampled_from((None, None, None, 0.8)),
        donate=st.booleans(),
        respect_user_checkpoint=st.booleans(),
        planner=st.sampled_from(("joint", "joint", "joint", "alpa", "xla")),
    )


def recipes(*, loops: bool = True, verify: bool = True) -> st.SearchStrategy[Recipe]:
    """Draws recipes of all operations. `loops`: with regions that run a body repeatedly. `verify`:
    with compile checks."""
    names = [*OPERATIONS, *(n for n in REGIONS if loops or n not in LOOPS)]
    sizes = st.sampled_from((8, 4, 16, 6, 3, 1, 2))
    return st.builds(
        Recipe,
        steps=steps(names, 2, MOST_STEPS),
        shape=st.lists(sizes, min_size=1, max_size=3).map(tuple),
        dtype=st.sampled_from(("float32", "float32", "bfloat16")),
        mode=st.sampled_from(("gradient", "train", "forward")),
        raw_key=st.booleans(),
        mesh_shape=st.sampled_from(MESHES),
        budget_share=st.sampled_from((None, 0.8, 0.5)),
        donate=st.booleans(),
        verify=st.sampled_from((False, False, False, verify)),
        respect_user_checkpoint=st.booleans(),
        planner=st.sampled_from(PLANNERS),
    )
