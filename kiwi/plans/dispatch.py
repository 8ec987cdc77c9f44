"""Dispatch: a plan behind one `jax.jit` of the caller's own arguments.

`jax.jit` looks up the program of known arguments in C++, so a planned call costs as much as an
unplanned one. The function is traced for the planned signature alone. For another signature its
tracing raises `OtherSignature`, and `jax.jit` itself refuses arguments that are committed to other
places than the plan's. The caller then looks for the right plan, or moves the arguments.

Each process of `jax.distributed` traces and plans by itself, or reads the plan from a file.
Processes with different programs would wait for each other's collectives for ever. So before a plan
is compiled for devices of several processes, they compare a digest of it.
"""

import functools
import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from kiwi.calls.signature import Arguments, Call
from kiwi.errors import InvalidFunctionError, PlanMismatchError
from kiwi.hlo import jax_internals
from kiwi.hlo.explicit_axes import has_explicit_axes
from kiwi.mesh import DeviceMesh
from kiwi.messages import Note, topics
from kiwi.plans.fingerprint import fingerprint
from kiwi.plans.record import PlanRecord, place_leaves
from kiwi.xla.compilers import of_devices


class OtherSignature(Exception):
    """The arguments are not those that were planned for."""


NO_CODE = ("CompileTime", "compile permanent error")
"""Words of XLA:TPU's error for a program that it has checked but generates no code for."""

REFUSED = (OtherSignature, ValueError, TypeError)
"""Raised by `Dispatched.run` before anything has run."""


class Dispatched:
    """A plan on concrete devices, for calls of one signature.

    Keyword arguments are passed by position, after the positional ones: `jax.jit` takes no
    shardings of keyword arguments.

    The jitted function runs without a mesh in the context, whatever the caller's context is. Its
    arguments and results lie on `mesh`. If the axes of `mesh` are Explicit, they are part of the
    results' types.

    - `context`: the mesh that the caller worked under when the plan was made.
    """

    def __init__(
        self,
        plan: PlanRecord,
        call: Call,
        mesh: jax.sharding.Mesh,
        context: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    ) -> None:
        self._context, self._call = context, call
        self._shardings = plan.leaf_shardings(mesh)
        in_shardings, named = call.put_together(self._shardings)
        self._names = tuple(named)
        first, options = len(in_shardings), call.options
        static = self._positions(first, options.static_argnums, options.static_argnames)
        donated = self._positions(first, options.donate_argnums, options.donate_argnames)
        in_shardings += named.values()
        compiler = of_devices(mesh)
        step, out_tree = plan.step_for(compiler), plan.traced.out_tree
        self._step, self._out_tree = step, out_tree

        def planned_step(*args: Any) -> Any:
            given = dict(zip(self._names, args[first:], strict=True))
            bound = Arguments.of(call.function, options, args[:first], given)
            if bound.key != call.key:
                raise OtherSignature
            return jax.tree.unflatten(out_tree, step.function(*bound.leaves))

        self._jit = functools.partial(
            jax.jit,
            planned_step,
            static_argnums=static,
            donate_argnums=donated,
            in_shardings=tuple(s for k, s in enumerate(in_shardings) if k not in static),
            out_shardings=jax.tree.unflatten(out_tree, step.result_shardings(mesh)),
            keep_unused=True,
        )
        own, waiting = (dict(plan.run_options(compiler, waits=w)) for w in (False, True))
        self._jitted = self._jit(compiler_options=own)
        self._other_options = [] if waiting == own else [waiting]

    def is_under(self, context: jax.sharding.Mesh | jax.sharding.AbstractMesh | None) -> bool:
        """Whether the plan was made under this mesh."""
        return self._context is context or self._context == context

    def is_for(self, arguments: Arguments) -> bool:
        """Whether the plan is for these arguments, which have the planned signature.

        It is if they have the types over Explicit axes that the plan was made for, or if they lie
        as the plan wants them. Results of the plan do, and their types differ from those of the
        first arguments.
        """
        return all(
            (typed, asked) == planned or _lies_as(leaf, sharding)
            for leaf, sharding, typed, asked, planned in zip(
                arguments.leaves,
                self._shardings,
                arguments.typed,
                arguments.asked,
                zip(self._call.typed, self._call.asked, strict=True),
                strict=True,
            )
        )

    @jax_internals.without_mesh()
    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the plan. **Raises:** one of `REFUSED` if it is not for these arguments."""
        if not self._names and not kwargs:
            return self._run(*args)
        if len(kwargs) != len(self._names) or not kwargs.keys() >= set(self._names):
            raise OtherSignature
        return self._run(*args, *(kwargs[name] for name in self._names))

    def _run(self, *args: Any) -> Any:
        try:
            return self._jitted(*args)
        except jax.errors.JaxRuntimeError as error:
            if not self._other_options or not any(words in str(error) for words in NO_CODE):
                raise
            said = str(error).splitlines()[0]
            told = f"No overlap, for which XLA generates no code: {said}"
            warnings.warn(str(Note.of(topics.OVERLAP_REFUSED, told)), stacklevel=3)
            self._jitted = self._jit(compiler_options=self._other_options.pop())
        return self._jitted(*args)

    @jax_internals.without_mesh()
    def move_and_run(self, arguments: Arguments) -> Any:
        """Moves arguments of the planned signature to where the plan wants them, and runs it."""
        args, kwargs = arguments.put_together(place_leaves(arguments.leaves, self._shardings))
        return self.run(*args, **kwargs)

    def trace(self, arguments: Arguments) -> Any:
        """The planned program as a part of the program that jax is tracing.

        Compiler options and donation belong to the outer program. A derivative is that of the
        user's function: the planned program no longer has its `jax.custom_vjp` rules.

        **Raises:** `InvalidFunctionError` over Explicit axes.
        """
        if has_explicit_axes(self._shardings[0].mesh):
            raise InvalidFunctionError(
                f"The planned {self._call.name} is called inside of another traced program, over a "
                "mesh with Explicit axes.",
                topic=topics.EXPLICIT_INSIDE,
            )

        @jax.custom_jvp
        @jax_internals.without_mesh()
        def planned(*leaves: Any) -> Any:
            placed = map(jax.lax.with_sharding_constraint, leaves, self._shardings)
            return jax.tree.unflatten(self._out_tree, self._step.function(*placed))

        @planned.defjvp
        def derivative(primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
            return jax.jvp(self._call.function, primals, tangents)

        return planned(*arguments.leaves)

    def _positions(
        self, first: int, numbers: Sequence[int], names: Sequence[str]
    ) -> tuple[int, ...]:
        """Positions of arguments that are given by number or by name."""
        named = (first + k for k, name in enumerate(self._names) if name in names)
        return (*(n for n in numbers if n < first), *named)


def _lies_as(leaf: Any, sharding: jax.sharding.Sharding) -> bool:
    if jax_internals.is_tracer(leaf) or not isinstance(leaf, jax.Array):
        return False
    return leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def users_mesh(planned: DeviceMesh, given: Any, context: Any) -> jax.sharding.Mesh:
    """The devices that a plan runs on.

    A mesh of the user's with the plan's axes is taken first, so that results can be mixed with the
    user's arrays; otherwise a mesh of the plan's own.

    - `given`: the mesh that the user gave Kiwi, whose devices are used. `context`: the mesh that
      the user works under. Both count only if they are `jax.sharding.Mesh`es.

    **Raises:** `NotEnoughDevicesError`.
    """
    meshes = [mesh for mesh in (given, context) if isinstance(mesh, jax.sharding.Mesh)]
    large = [mesh for mesh in meshes if mesh is given or mesh.size >= planned.size]
    own = planned.jax_mesh(list(large[0].devices.flat) if large else None)
    return next((mesh for mesh in reversed(meshes) if _has_axes_of(mesh, own)), own)


def _has_axes_of(mesh: jax.sharding.Mesh, other: jax.sharding.Mesh) -> bool:
    is_named_alike = mesh.axis_names == other.axis_names
    return is_named_alike and np.array_equal(mesh.devices, other.devices)


def plan_digest(plan: PlanRecord) -> bytes:
    """SHA-256 of everything that the planned step is emitted from. It is equal in every process."""
    execution = plan.execution
    parts = (
        fingerprint(execution.units.graph.program).values,
        execution.mesh.shape,
        execution.mesh.axis_names,
        execution.schedule.steps,
        [s.dims for s in execution.argument_shardings],
        [None if s is None else s.dims for s in execution.result_shardings],
        sorted((value, s.dims) for value, s in execution.layouts.items()),
        [[s.dims for s in unit] for unit in execution.reads],
        sorted(execution.kept_copies),
        None if execution.tied_steps is None else sorted(execution.tied_steps),
        astuple(execution.arrangement),
        execution.copies_ahead,
        execution.gradients_in_time,
        execution.metrics_in_time,
    )
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def check_same_plan(plan: PlanRecord, mesh: jax.sharding.Mesh) -> None:
    """Compares the plan with those of all other processes, each of which has to call this.

    Nothing happens if all devices of the mesh belong to this process.

    **Raises:** `PlanMismatchError`, in every process, if two plans differ.
    """
    if {d.process_index for d in mesh.devices.flat} <= {jax.process_index()}:
        return
    own = np.frombuffer(plan_digest(plan), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(own))
    others = [k for k, digest in enumerate(every) if not np.array_equal(digest, every[0])]
    if not others:
        return
    raise PlanMismatchError(
        f"Processes {', '.join(map(str, others))} have another plan than process 0.",
        topic=topics.PROCESSES_DIFFER,
    )
