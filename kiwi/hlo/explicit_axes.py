"""Removes meshes from a traced function, as if it had been traced without one.

jax keeps the mesh of the context (`jax.set_mesh`) in the traced program: in the context of every
equation, and in the types of values. The sharding of a type names the `AxisType.Explicit` axes that
cut the value. Equations over different meshes cannot be mixed, and Kiwi's own program is over the
plan's mesh. So Kiwi removes the meshes, and turns the user's shardings into `sharding_constraint`s:

1. `out_sharding` of a matmul, a reshape, a sum, … constrains the result. An `out_sharding` that jax
   adds during differentiation constrains nothing, since it repeats the type of an operand.
2. `jax.sharding.reshard` constrains its result. So do `auto_axes` and `explicit_axes`, which are
   made of reshards. The reshard of a cotangent constrains the incoming cotangent, as the gradient
   of `with_sharding_constraint` does.
3. `in_shardings` and `out_shardings` of a `jax.jit` inside the function constrain its operands and
   results.
4. If no axis in an array's type cuts a dimension, the dimension stays whole on a mesh with only
   Explicit axes. On other meshes XLA may cut the dimension along the other axes, and the constraint
   leaves it open.

The axes that a `shard_map` makes manual stay in its body.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from kiwi.hlo import jax_internals
from kiwi.hlo.program import join_scopes
from kiwi.hlo.sharding_constraints import CONSTRAINT_PRIMITIVE, is_constraint

_RESHARD = "reshard"

_ASKED = ("out_sharding", "sharding")
"""The parameters of equations that state the sharding of the result."""

_JIT = frozenset({"jit", "pjit"})


def without_meshes(closed: jex.ClosedJaxpr, *, follows: bool = True) -> jex.ClosedJaxpr:
    """Returns a traced function without the meshes that it was traced under.

    - `follows`: whether the user's shardings become constraints. False leaves all of them out,
      including the function's own `with_sharding_constraint`s.
    """
    with jax_internals.without_mesh():
        return _Rewriter(follows).closed(closed, "")


def has_explicit_axes(mesh: Mesh | AbstractMesh) -> bool:
    """Whether a mesh has an axis of `AxisType.Explicit`, which the types of arrays name."""
    return AxisType.Explicit in mesh.axis_types


def with_auto_axes(mesh: Any) -> Any:
    """Returns the same mesh with Auto axes in place of its Explicit ones."""
    if not has_explicit_axes(mesh):
        return mesh
    types = [
        AxisType.Auto if axis_type is AxisType.Explicit else axis_type
        for axis_type in mesh.axis_types
    ]
    return mesh.update(axis_types=tuple(types))


def over_auto_axes(array: Any) -> Any:
    """Returns an array or a tracer without Explicit axes in its type.

    An array over Explicit axes is resharded to the same mesh with Auto axes.
    """
    sharding = jax.typeof(array).sharding
    if not has_explicit_axes(sharding.mesh):
        return array
    mesh = with_auto_axes(sharding.mesh)
    with jax.sharding.use_abstract_mesh(mesh):
        whole = PartitionSpec(*[None] * len(array.shape))
        return jax.sharding.reshard(array, NamedSharding(mesh, whole))


def constrained_spec(sharding: NamedSharding, rank: int) -> PartitionSpec | None:
    """Returns the spec by which a sharding over Explicit axes constrains an array of rank `rank`.

    None if the sharding constrains nothing: all dimensions are open, or the mesh has no axes. jax
    puts shardings over a mesh without axes into equations that it differentiates.
    """
    if sharding.mesh.empty:
        return None
    entries = [*sharding.spec, *[None] * (rank - len(sharding.spec))]
    if AxisType.Auto in sharding.mesh.axis_types:
        entries = [PartitionSpec.UNCONSTRAINED if axes is None else axes for axes in entries]
    if all(entry is PartitionSpec.UNCONSTRAINED for entry in entries):
        return None
    return PartitionSpec(*entries)


class _Rewriter:
    """Rewrites a jaxpr and the jaxprs inside. A jaxpr without meshes stays the same object."""

    def __init__(self, follows: bool) -> None:
        self._follows = follows
        # The value holds the old jaxpr, so that no other jaxpr gets its id.
        self._known: dict[tuple[int, bool, bool], tuple[jex.Jaxpr, jex.Jaxpr]] = {}

    def closed(self, closed: jex.ClosedJaxpr, scope: str) -> jex.ClosedJaxpr:
        """Returns a rewritten closed jaxpr. `scope`: the name scopes of the calls around."""
        jaxpr = self.jaxpr(closed.jaxpr, scope)
        constants = [_over_auto_axes(constant) for constant in closed.consts]
        changed = any(new is not old for new, old in zip(constants, closed.consts, strict=True))
        return jex.ClosedJaxpr(jaxpr, constants) if changed or jaxpr is not closed.jaxpr else closed

    def jaxpr(self, jaxpr: jex.Jaxpr, scope: str) -> jex.Jaxpr:
        """Returns a rewritten jaxpr. Its scope distinguishes backward pass and forward pass."""
        key = (id(jaxpr), _is_transposed(scope), "rematted" in scope)
        if key not in self._known:
            self._known[key] = (jaxpr, _OneJaxpr(self, jaxpr, scope).rewritten())
        return self._known[key][1]

    @property
    def follows(self) -> bool:
        """Whether shardings that the user asks for become constraints."""
        return self._follows


class _OneJaxpr:
    """One jaxpr while its meshes are removed.

    `_atoms`: the new variable or literal for each variable of the old jaxpr.
    """

    def __init__(self, rewriter: _Rewriter, jaxpr: jex.Jaxpr, scope: str) -> None:
        self._rewriter = rewriter
        self._jaxpr = jaxpr
        self._scope = scope
        self._atoms: dict[Any, Any] = {}

    def rewritten(self) -> jex.Jaxpr:
        old = self._jaxpr
        constvars = [self._bound(variable) for variable in old.constvars]
        invars = [self._bound(variable) for variable in old.invars]
        eqns = [new for eqn in old.eqns for new in self._equations(eqn)]
        outvars = [self._read(variable) for variable in old.outvars]
        lists = (constvars, invars, eqns, outvars)
        before = (old.constvars, old.invars, old.eqns, old.outvars)
        if all(_same(new, was) for new, was in zip(lists, before, strict=True)):
            return old
        return old.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=outvars)

    def _bound(self, variable: Any) -> Any:
        """The new variable for a variable that the jaxpr binds."""
        aval = _without_axes(variable.aval)
        new = variable if aval is variable.aval else type(variable)(aval)
        if not isinstance(variable, jex.DropVar):
            self._atoms[variable] = new
        return new

    def _read(self, atom: Any) -> Any:
        if not isinstance(atom, jex.Literal):
            return self._atoms[atom]
        aval = _without_axes(atom.aval)
        return atom if aval is atom.aval else jax_internals.literal_of_type(atom, aval)

    def _equations(self, eqn: Any) -> Iterator[Any]:
        """Yields the new equations for one equation of the old jaxpr."""
        stack = join_scopes(self._scope, str(eqn.source_info.name_stack))
        name = eqn.primitive.name
        if name == _RESHARD:
            typed = eqn.invars[0].aval.sharding if _is_transposed(stack) else eqn.params[_DST]
            yield from self._constrained(eqn, _typed(typed, eqn.invars[0]))
        elif name == CONSTRAINT_PRIMITIVE and is_constraint(eqn) and not self._rewriter.follows:
            self._alias(eqn)
        elif name == CONSTRAINT_PRIMITIVE and is_constraint(eqn) and _is_explicit(eqn.invars[0]):
            yield from self._constrained(eqn, _merged(eqn))
        else:
            yield from self._plain(eqn, name, stack)

    def _plain(self, eqn: Any, name: str, stack: str) -> Iterator[Any]:
        """Yields the equation without its mesh, and the constraints on its operands and results."""
        operands, results = _asked_of(eqn, name, stack) if self._rewriter.follows else ({}, {})
        invars = [self._read(variable) for variable in eqn.invars]
        for position, sharding in operands.items():
            constraint = _constraint(eqn, invars[position], sharding)
            if constraint is not None:
                invars[position] = constraint.outvars[0]
                yield constraint
        outvars = [self._bound(variable) for variable in eqn.outvars]
        result_constraints = []
        for position, sharding in results.items():
            inner = jex.Var(outvars[position].aval)
            constraint = _constraint(eqn, inner, sharding, outvars[position])
            if constraint is not None:
                outvars[position] = inner
                result_constraints.append(constraint)
        params = self._params(eqn.params, name, stack)
        mesh = jax_internals.equation_mesh(eqn)
        context = jax_internals.equation_context(eqn.ctx, _target(mesh))
        is_unchanged = _same(invars, eqn.invars) and _same(outvars, eqn.outvars)
        if is_unchanged and params is eqn.params and context is eqn.ctx:
            yield eqn
        else:
            yield eqn.replace(invars=invars, outvars=outvars, params=params, ctx=context)
        yield from result_constraints

    def _constrained(self, eqn: Any, asked: NamedSharding | None) -> Iterator[Any]:
        """Yields a constraint in place of an equation with one operand and one result.

        If nothing is to be constrained, the result becomes another name of the operand.
        """
        (result,) = eqn.outvars
        operand = self._read(eqn.invars[0])
        constraint = None
        if self._rewriter.follows and not isinstance(result, jex.DropVar):
            outvar = jex.Var(_without_axes(result.aval))
            constraint = _constraint(eqn, operand, asked, outvar)
        if constraint is None:
            self._alias(eqn)
            return
        self._atoms[result] = constraint.outvars[0]
        yield constraint

    def _alias(self, eqn: Any) -> None:
        """Makes the equation's result another name of its operand."""
        self._atoms[eqn.outvars[0]] = self._read(eqn.invars[0])

    def _params(self, params: Mapping[str, Any], name: str, stack: str) -> Mapping[str, Any]:
        new_params = {key: self._param(value, stack) for key, value in params.items()}
        for key in _ASKED if name != CONSTRAINT_PRIMITIVE else ():
            if isinstance(new_params.get(key), NamedSharding):
                new_params[key] = None
        if name == "shard_map":
            new_params["mesh"] = _of_no_devices(params["mesh"])
        return params if all(new_params[key] is params[key] for key in params) else new_params

    def _param(self, value: Any, stack: str) -> Any:
        if isinstance(value, jex.ClosedJaxpr):
            return self._rewriter.closed(value, stack)
        if isinstance(value, jex.Jaxpr):
            return self._rewriter.jaxpr(value, stack)
        if isinstance(value, NamedSharding):
            return _with_plain_mesh(value)
        if isinstance(value, tuple | list):
            parts = [self._param(part, stack) for part in value]
            if _same(parts, value):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return _without_axes(value)


_DST = "dst_sharding"


def _same(new: Sequence[Any], old: Sequence[Any]) -> bool:
    return len(new) == len(old) and all(
        new_item is old_item for new_item, old_item in zip(new, old, strict=True)
    )


def _is_transposed(stack: str) -> bool:
    """Whether a name stack is in the backward pass, and not in a recomputation of the forward
    pass."""
    return "transpose(" in stack and "rematted_computation" not in stack


def _is_explicit(atom: Any) -> bool:
    """Whether an operand's type names axes that cut the operand."""
    sharding = getattr(atom.aval, "sharding", None)
    return sharding is not None and any(entry is not None for entry in sharding.spec)


def _merged(eqn: Any) -> NamedSharding:
    """Returns the full sharding of a constraint on a mesh with Auto and Explicit axes.

    The constraint names the Auto axes, and the operand's type names the Explicit ones.
    """
    sharding, typed = eqn.params["sharding"], eqn.invars[0].aval.sharding.spec
    auto_entries = [*sharding.spec, *[None] * (len(typed) - len(sharding.spec))]
    entries = []
    for auto_entry, explicit_entry in zip(auto_entries, typed, strict=True):
        named = (*_names(explicit_entry), *_names(auto_entry))
        entries.append(named or auto_entry)
    return NamedSharding(with_auto_axes(sharding.mesh.abstract_mesh), PartitionSpec(*entries))


def _typed(given: NamedSharding, atom: Any) -> NamedSharding | None:
    """Returns the constraint on an array for the sharding `given`; None if it constrains nothing.

    The mesh of the constraint has Auto axes in place of Explicit ones.
    """
    spec = constrained_spec(given, len(atom.aval.shape))
    # UNCONSTRAINED exists on meshes with Auto axes only.
    return None if spec is None else NamedSharding(with_auto_axes(given.mesh), spec)


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _asked_of(
    eqn: Any, name: str, stack: str
) -> tuple[dict[int, NamedSharding], dict[int, NamedSharding]]:
    """Returns the shardings that an equation states for its operands and its results, each by
    position."""
    if name in _JIT:
        sides = (eqn.params.get("in_shardings", ()), eqn.params.get("out_shardings", ()))
        operands, results = (
            {k: sharding for k, sharding in enumerate(side) if isinstance(sharding, NamedSharding)}
            for side in sides
        )
        return operands, results
    stated = next((eqn.params[key] for key in _ASKED if eqn.params.get(key) is not None), None)
    # The readers of a result that is computed from scalars decide its layout.
    reads_array = any(getattr(variable.aval, "shape", ()) for variable in eqn.invars)
    if not isinstance(stated, NamedSharding) or name == CONSTRAINT_PRIMITIVE:
        return {}, {}
    if not reads_array or _is_transposed(stack):
        return {}, {}
    typed = _typed(stated, eqn.outvars[0])
    return {}, {} if typed is None else {0: typed}


def _constraint(
    eqn: Any, operand: Any, asked: NamedSharding | None, result: Any | None = None
) -> Any | None:
    """Returns a `sharding_constraint` of `operand` with the source line of an equation.

    None if there is nothing to constrain: no sharding, a scalar, a literal, an unread result, or an
    equation in the body of a `shard_map`.

    - `result`: the variable of the constraint's result; None makes a new one.
    """
    is_manual = AxisType.Manual in jax_internals.equation_mesh(eqn).axis_types
    if asked is None or is_manual or not operand.aval.shape:
        return None
    if isinstance(operand, jex.Literal) or isinstance(result, jex.DropVar):
        return None
    template = _constraint_of(operand.aval, NamedSharding(_of_no_devices(asked.mesh), asked.spec))
    outvar = jex.Var(operand.aval) if result is None else result
    return template.replace(invars=[operand], outvars=[outvar], source_info=eqn.source_info)


@functools.lru_cache(maxsize=256)
def _constraint_of(aval: Any, sharding: NamedSharding) -> Any:
    def constrained(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, sharding)

    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    (eqn,) = jax.make_jaxpr(constrained)(shape).eqns
    return eqn


def _with_plain_mesh(sharding: NamedSharding) -> NamedSharding:
    """Returns the same sharding over a mesh without Explicit axes. A concrete mesh without them
    stays."""
    if isinstance(sharding.mesh, Mesh) and not has_explicit_axes(sharding.mesh):
        return sharding
    mesh = _of_no_devices(sharding.mesh)
    if mesh is sharding.mesh:
        return sharding
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def _target(mesh: AbstractMesh) -> AbstractMesh:
    """Returns the mesh that replaces a mesh in types and contexts.

    A mesh with manual axes keeps them, and gets Auto axes in place of Explicit ones. Any other mesh
    is replaced by an empty one.
    """
    if AxisType.Manual not in mesh.axis_types:
        return mesh if mesh.empty else _NO_MESH
    return _of_no_devices(with_auto_axes(mesh))


_NO_MESH = AbstractMesh((), ())


def _of_no_devices(mesh: Mesh | AbstractMesh) -> AbstractMesh:
    """Returns the abstract mesh of a mesh, with Auto axes in place of Explicit ones.

    The result names no devices and no kind of device, since the program may be planned for others.
    """
    auto = with_auto_axes(mesh)
    if isinstance(auto, AbstractMesh) and auto.abstract_device is None:
        return auto
    return AbstractMesh(auto.axis_sizes, auto.axis_names, axis_types=auto.axis_types)


def _without_axes(aval: Any) -> Any:
    """Returns a type without the mesh that it was traced under. Other objects stay as they are."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is None or mesh.empty:
        return aval
    target = _target(mesh)
    has_axes = any(entry is not None for entry in aval.sharding.spec)
    return aval if target == mesh and not has_axes else jax_internals.with_mesh(aval, target)


def _over_auto_axes(constant: Any) -> Any:
    """Returns a captured array without Explicit axes in its type, on the same devices."""
    sharding = getattr(constant, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not has_explicit_axes(sharding.mesh):
        return constant
    return jax.device_put(constant, NamedSharding(with_auto_axes(sharding.mesh), sharding.spec))
