"""Functions from a JAX function to its graph, units and planning problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from kiwi.hlo.chains import Fusion
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.grouping import build_units
from kiwi.hlo.lowering import lower
from kiwi.hlo.program import Program
from kiwi.hlo.tracing import trace
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import CATALOGUE, DeviceMesh, Hardware, TensorSharding
from kiwi.problem.build import Fixed, PlanningProblem, build_problem
from kiwi.targets.registry import target_of

WAITING = replace(CATALOGUE["h100-sxm"], interference=None)
"""GPUs that wait for each collective: nothing overlaps."""


def array(*shape: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    """Returns an abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def flat(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Returns `function` with its result as a flat list."""
    return lambda *args: jax.tree.leaves(function(*args))


def trace_flat(function: Callable[..., Any], *args: Any, **options: Any) -> Program:
    """Returns the program of a function of arrays."""
    return trace(flat(function), args, **options)


def graph_of(function: Callable[..., Any], *args: Any) -> HloGraph:
    """Returns the HLO graph of a function of arrays."""
    return lower(trace_flat(function, *args))


def step_graph(module: Any, config: Any) -> HloGraph:
    """Returns the HLO graph of an example's training step."""
    leaves, tree = jax.tree.flatten((module.abstract_state(config), module.abstract_batch(config)))
    step = module.make_train_step(config)
    return graph_of(lambda *flat_args: step(*jax.tree.unflatten(tree, flat_args)), *leaves)


def units_of(function: Callable[..., Any], *args: Any, donated: Sequence[int] = ()) -> UnitGraph:
    """Returns the units of a function of arrays. `donated`: the positions of donated arguments."""
    graph = graph_of(function, *args)
    return build_units(graph, frozenset(graph.program.arguments[k] for k in donated))


def kernels_of(units: UnitGraph, profile: Hardware | str = "h100-sxm") -> KernelGraph:
    """Returns the kernels that the target of `profile` runs for the units."""
    hardware = CATALOGUE[profile] if isinstance(profile, str) else profile
    return target_of(hardware).kernels(units, hardware)


def fusion_of(profile: str) -> Fusion:
    """Returns the target's rules on what it fuses into other kernels."""
    return target_of(CATALOGUE[profile]).facts(CATALOGUE[profile]).fusion


def problem_of(
    units: UnitGraph,
    mesh_shape: Sequence[int],
    *,
    profile: Hardware | str = "h100-sxm",
    arguments: Mapping[int, TensorSharding] | None = None,
    results: Mapping[int, TensorSharding] | None = None,
    carried: Mapping[int, int] | None = None,
    recompute: bool = True,
    limit_bytes: int | None = None,
) -> PlanningProblem:
    """Returns the planning problem of units. The keys of `arguments`, and the values of `carried`,
    are positions of arguments."""
    position, mesh = units.graph.program.arguments, DeviceMesh.create(mesh_shape, profile)
    fixed = Fixed(
        {position[k]: s for k, s in (arguments or {}).items()},
        dict(results or {}),
        {r: position[k] for r, k in (carried or {}).items()},
        recompute,
    )
    return build_problem(kernels_of(units, mesh.hardware), mesh, fixed, limit_bytes)


def unit_with(units: UnitGraph, opcode: str, occurrence: int = 0) -> Unit:
    """Returns the unit whose root has this opcode: the first one, or the one at index
    `occurrence`."""
    matching = [u for u in units.units if units.graph.opcode_of(u.root) == opcode]
    return matching[occurrence]


def primitives(program: Program) -> list[str]:
    """Returns the names of a program's primitives, in program order."""
    return [equation.name for equation in program.equations]


def random_arrays(shapes: Sequence[jax.ShapeDtypeStruct], seed: int = 0) -> list[np.ndarray]:
    """Returns normally distributed arrays of the given shapes and dtypes."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s.shape).astype(s.dtype) for s in shapes]
