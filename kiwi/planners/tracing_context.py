"""The mesh under which a function is traced if its caller has set none.

A function with bare `PartitionSpec`s needs a mesh in the context (`jax.set_mesh`), and on the
command line there often is none. Such a function is traced again under the plan's mesh: first with
Auto axes, which `with_sharding_constraint` needs, then with Explicit axes, which `out_sharding` and
`reshard` need. If arguments are sharded along Explicit axes, their own mesh is used instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType

from kiwi.calls.signature import Call
from kiwi.errors import InvalidFunctionError
from kiwi.hlo import jax_internals
from kiwi.hlo.jax_internals import MeshContext
from kiwi.mesh import DeviceMesh
from kiwi.messages import topics

_REFUSALS = (ValueError, RuntimeError, NameError, TypeError)
"""The errors that jax raises for unknown names of axes, and for results that are no arrays."""

_Traced = TypeVar("_Traced")


def under_some_mesh(
    call: Call, mesh: DeviceMesh | None, traced: Callable[[Call], _Traced]
) -> _Traced:
    """Traces a call in the caller's context, or under the plan's mesh if the call needs one.

    - `traced`: traces a call in the call's context.

    **Raises:** `InvalidFunctionError` for the name of an axis that nothing binds or that the mesh
    lacks, for a result that is no array, and for a `pmap` that needs other devices; any error that
    the function itself raises.
    """
    calls = [call, *_under(call, mesh)]
    for position, candidate in enumerate(calls):
        try:
            return traced(candidate)
        except _REFUSALS as error:
            is_last = position == len(calls) - 1
            needs_mesh = jax_internals.misses_mesh(error)
            if (needs_mesh or jax_internals.misses_explicit_axes(error)) and not is_last:
                continue
            explained = _explained(call, candidate, error)
            if explained is None and jax_internals.may_be_of_pmap(error):
                is_of_pmap = jax_internals.is_raised_in_pmap(lambda: traced(candidate))  # noqa: B023
                explained = _of_pmap(call, error) if is_of_pmap else None
            if explained is None:
                raise
            raise explained from error
    raise AssertionError("a call without a context")


def _under(call: Call, mesh: DeviceMesh | None) -> Iterator[Call]:
    """Yields the call under other meshes, in the order in which they are tried; none if the caller
    has set a mesh.

    If arguments have Explicit axes, the only mesh is theirs, since jax accepts their types under no
    other mesh. Otherwise the meshes are the plan's mesh with Auto axes, and then with Explicit
    axes.
    """
    if call.context.mesh is not None:
        return
    of_arguments = next((typed.mesh for typed in call.typed if typed is not None), None)
    if of_arguments is not None:
        is_abstract = isinstance(of_arguments, AbstractMesh)
        abstract_mesh = of_arguments if is_abstract else of_arguments.abstract_mesh
        yield replace(call, context=MeshContext.under(abstract_mesh))
        return
    if mesh is None:
        return
    for kind in (AxisType.Auto, AxisType.Explicit):
        types = (kind,) * len(mesh.shape)
        abstract = AbstractMesh(mesh.shape, mesh.axis_names, axis_types=types)
        yield replace(call, context=MeshContext.under(abstract))


def _of_pmap(call: Call, error: Exception) -> InvalidFunctionError:
    """Returns the error for a `pmap` that cannot be traced on the devices of this process."""
    return InvalidFunctionError(
        f"A pmap in {call.name} cannot be traced: {error}.",
        topic=topics.PMAP,
        cause="jax.pmap maps an axis over the devices of this process, and it has "
        f"{jax.device_count()}.",
        suggestion="Plan it with as many devices as that axis is long (jax_num_cpu_devices, before "
        "the first use of jax; --mesh does that). Or plan the function without pmap: it takes the "
        "whole batch, without the leading axis of devices and without pmean, and Kiwi shards it; "
        'see "From pmap" in docs/guides/migrating.md.',
    )


def _explained(call: Call, traced: Call, error: Exception) -> InvalidFunctionError | None:
    """Returns an error with advice for an error of jax about an axis name or a result; None for
    other errors.

    - `traced`: the call under the mesh under which it was traced.
    """
    of_result = jax_internals.no_array_result(error)
    if of_result is not None:
        return InvalidFunctionError(
            f"{call.name} returns a value of type {of_result}, which is no array.",
            topic=topics.NO_ARRAY_RESULT,
        )
    unbound, unknown = jax_internals.unbound_axis(error), jax_internals.unknown_axis(error)
    if unbound is not None:
        return InvalidFunctionError(
            f"{call.name} names the axis {unbound!r} in a collective, such as psum or pmean, and "
            "nothing binds it.",
            topic=topics.UNBOUND_AXIS,
            suggestion="Leave the collective out: a mean over the whole batch is one over all "
            "devices, and the plan adds what has to be communicated. Or wrap what is written for "
            f'one device: jax.shard_map(fun, mesh=mesh, in_specs=P("{unbound}"), out_specs=P()), '
            f'and plan it with axis_names=("{unbound}", ...) (--axis-names {unbound},...).',
        )
    mesh = traced.context.mesh
    if unknown is not None and mesh is not None:
        names = ",".join(map(str, mesh.axis_names))
        return InvalidFunctionError(
            f"{call.name} names the mesh axis {unknown!r}; the mesh has {names}.",
            topic=topics.AXIS_OF_OTHER_MESH,
            cause="The mesh is that of jax.set_mesh."
            if call.context.mesh is not None
            else "The function is traced under the plan's mesh, since no jax.set_mesh is active.",
            suggestion=f'Name the axes of the plan so: axis_names=("{unknown}", ...), on the '
            f"command line --axis-names {unknown},...; or call jax.set_mesh(mesh) first.",
        )
    return None
