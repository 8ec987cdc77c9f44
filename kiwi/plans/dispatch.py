"""Dispatch: a plan behind one `jax.jit` of the caller's own arguments.

`jax.jit` looks up the program of known arguments in C++, so a planned call costs as much as an
unplanned call. The function is traced only for the planned signature. For another signature,
tracing raises `OtherSignature`. `jax.jit` itself refuses arguments that are committed to other
devices or shardings than the plan's. The caller then looks for the right plan, or moves the
arguments.

Each process of `jax.distributed` traces and plans by itself, or reads the plan from a file.
Processes with different programs would wait for each other's collectives for ever. So before a plan
is compiled for devices of several processes, the processes compare a digest of the plan.
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
    """The arguments have another signature than the planned one."""


NO_CODE = ("CompileTime", "compile permanent error")
"""Parts of the error with which XLA:TPU refuses to generate code for a program that it has
checked. Any other error is raised."""

REFUSED = (OtherSignature, ValueError, TypeError)
"""The exceptions that `Dispatched.run` raises before anything has run."""


class Dispatched:
    """A plan on concrete devices, for calls of one signature.

    Keyword arguments are passed by position, after the positional arguments, because `jax.jit`
    takes no shardings of keyword arguments.

    The jitted function runs without a mesh in the context, whatever the caller's context is. Its
    arguments and results lie on `mesh`. If the axes of `mesh` are Explicit, they are part of the
    results' types.

    - `context`: the mesh in the caller's context when the plan was made.
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
        first_keyword, options = len(in_shardings), call.options
        static = self._positions(first_keyword, options.static_argnums, options.static_argnames)
        donated = self._positions(first_keyword, options.donate_argnums, options.donate_argnames)
        in_shardings += named.values()
        compiler = of_devices(mesh)
        step, out_tree = plan.step_for(compiler), plan.traced.out_tree
        self._step, self._out_tree = step, out_tree

        def planned_step(*args: Any) -> Any:
            keywords = dict(zip(self._names, args[first_keyword:], strict=True))
            bound = Arguments.of(call.function, options, args[:first_keyword], keywords)
            if bound.key != call.key:
                raise OtherSignature
            return jax.tree.unflatten(out_tree, step.function(*bound.leaves))

        self._jit = functools.partial(
            jax.jit,
            planned_step,
            static_argnums=static,
            donate_argnums=donated,
            in_shardings=tuple(
                sharding for k, sharding in enumerate(in_shardings) if k not in static
            ),
            out_shardings=jax.tree.unflatten(out_tree, step.result_shardings(mesh)),
            keep_unused=True,
        )
        overlapping, waiting = (
            dict(plan.run_options(compiler, waits=waits)) for waits in (False, True)
        )
        self._jitted = self._jit(compiler_options=overlapping)
        self._other_options = [] if waiting == overlapping else [waiting]

    def is_under(self, context: jax.sharding.Mesh | jax.sharding.AbstractMesh | None) -> bool:
        """Whether the plan was made under the mesh `context`."""
        return self._context is context or self._context == context

    def is_for(self, arguments: Arguments) -> bool:
        """Whether the plan is for these arguments, which have the planned signature.

        Each argument must have the type over Explicit axes and the sharding that the plan was made
        for, or lie as the plan expects it. Results of the plan lie so, although their types differ
        from the types of the first arguments.
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
        """Runs the plan. **Raises:** one of `REFUSED` if the plan is not for these arguments."""
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
            message = str(error).splitlines()[0]
            told = f"No overlap, for which XLA generates no code: {message}"
            warnings.warn(str(Note.of(topics.OVERLAP_REFUSED, told)), stacklevel=3)
            self._jitted = self._jit(compiler_options=self._other_options.pop())
        return self._jitted(*args)

    @jax_internals.without_mesh()
    def move_and_run(self, arguments: Arguments) -> Any:
        """Moves arguments of the planned signature to the plan's shardings, and runs the plan."""
        args, kwargs = arguments.put_together(place_leaves(arguments.leaves, self._shardings))
        return self.run(*args, **kwargs)

    def trace(self, arguments: Arguments) -> Any:
        """Traces the planned program as a part of the program that JAX is tracing.

        Compiler options and donation belong to the outer program. A derivative is computed from the
        user's function, because the planned program no longer has its `jax.custom_vjp` rules.

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
        """Returns the positions of the arguments that options name by number or by name. `first`:
        the number of positional arguments."""
        named = (first + k for k, name in enumerate(self._names) if name in names)
        return (*(n for n in numbers if n < first), *named)


def _lies_as(leaf: Any, sharding: jax.sharding.Sharding) -> bool:
    if jax_internals.is_tracer(leaf) or not isinstance(leaf, jax.Array):
        return False
    return leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def users_mesh(planned: DeviceMesh, given: Any, context: Any) -> jax.sharding.Mesh:
    """Returns the mesh of devices that a plan runs on.

    A mesh of the user with the plan's axes is preferred, so that results can be combined with the
    user's arrays. Otherwise the plan makes its own mesh.

    - `given`: the mesh that the user gave Kiwi. Its devices are used.
    - `context`: the mesh in the user's context. If `given` is no mesh, its devices are used if they
      are enough.

    Both count only if they are `jax.sharding.Mesh`es.

    **Raises:** `NotEnoughDevicesError`.
    """
    meshes = [mesh for mesh in (given, context) if isinstance(mesh, jax.sharding.Mesh)]
    large = [mesh for mesh in meshes if mesh is given or mesh.size >= planned.size]
    plan_mesh = planned.jax_mesh(list(large[0].devices.flat) if large else None)
    return next((mesh for mesh in reversed(meshes) if _has_axes_of(mesh, plan_mesh)), plan_mesh)


def _has_axes_of(mesh: jax.sharding.Mesh, other: jax.sharding.Mesh) -> bool:
    is_named_alike = mesh.axis_names == other.axis_names
    return is_named_alike and np.array_equal(mesh.devices, other.devices)


def plan_digest(plan: PlanRecord) -> bytes:
    """Returns the SHA-256 of everything that the planned step is emitted from. Equal plans have
    equal digests in every process."""
    execution = plan.execution
    parts = (
        fingerprint(execution.units.graph.program).values,
        execution.mesh.shape,
        execution.mesh.axis_names,
        execution.schedule.steps,
        [layout.dims for layout in execution.argument_shardings],
        [None if layout is None else layout.dims for layout in execution.result_shardings],
        sorted((value, layout.dims) for value, layout in execution.layouts.items()),
        [[layout.dims for layout in unit] for unit in execution.reads],
        sorted(execution.kept_copies),
        None if execution.tied_steps is None else sorted(execution.tied_steps),
        astuple(execution.arrangement),
        execution.copies_ahead,
        execution.gradients_in_time,
        execution.metrics_in_time,
    )
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def check_same_plan(plan: PlanRecord, mesh: jax.sharding.Mesh) -> None:
    """Compares the plan with the plans of all other processes. Each process has to call this.

    Nothing happens if all devices of the mesh belong to this process.

    **Raises:** `PlanMismatchError`, in every process, if two plans differ.
    """
    if {device.process_index for device in mesh.devices.flat} <= {jax.process_index()}:
        return
    own_digest = np.frombuffer(plan_digest(plan), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(own_digest))
    differing = [k for k, digest in enumerate(every) if not np.array_equal(digest, every[0])]
    if not differing:
        return
    raise PlanMismatchError(
        f"Processes {', '.join(map(str, differing))} have another plan than process 0.",
        topic=topics.PROCESSES_DIFFER,
    )
