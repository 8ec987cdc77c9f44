"""Recipes of random programs, and hypothesis' strategies that draw them.

A recipe is plain data, so that hypothesis can shrink it and its `repr` reproduces a failure:

    recipe ::= shape dtype mode mesh budget ... step*
    step   ::= operation choice step*

`choice` is an integer whose digits choose operands, axes and sizes (`Digits`); the steps below a
step are the body of a region (a scan, a branch, a custom derivative).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from benchmarks.programs.operations import OPERATIONS
from benchmarks.programs.regions import LOOPS, REGIONS
from benchmarks.programs.steps import Step

MOST_STEPS = 7
MOST_BODY_STEPS = 3
MESHES = ((2, 4), (8,), (2, 2, 2), (1, 1), (4, 2), (2,), (1, 8), (3, 2))
PLANNERS = ("joint", "joint", "joint", "alpa", "two-pass", "xla")


@dataclass(frozen=True)
class Recipe:
    """A random program, and how it is planned.

    - `shape`: of the first input, batch first.
    - `mode`: "forward" returns values, "gradient" loss and gradients, "train" updated parameters.
    - `raw_key`: random numbers come from `jax.random.PRNGKey`, not from `jax.random.key`.
    - `budget_share`: of the peak of the plan without a limit; None is no limit.
    - `donate`: the step's state is donated (mode "train").
    - `verify`: the plan is compiled and checked.
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
    """Steps of the named operations; regions have bodies of `depth` - 1."""
    plain = [n for n in names if n in OPERATIONS]
    regions = [n for n in names if n in REGIONS]
    choices = st.integers(0, 2**24 - 1)
    step = st.builds(Step, st.sampled_from(plain), choices)
    if depth > 0 and regions:
        body = steps(names, depth - 1, MOST_BODY_STEPS)
        step |= st.builds(Step, st.sampled_from(regions), choices, body)
    return st.lists(step, min_size=1, max_size=most).map(tuple)


def recipes(*, loops: bool = True, verify: bool = True) -> st.SearchStrategy[Recipe]:
    """Recipes of everything, or without what runs a body repeatedly, or without compile checks."""
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
