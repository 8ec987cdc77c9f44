"""The arguments of a call as `jax.jit` treats them: static arguments, donated arguments, pytrees,
given shardings."""

import enum
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from kiwi.errors import InvalidArgumentError, InvalidFunctionError, ShardingConflictError
from kiwi.hlo.explicit_axes import constrained_spec, has_explicit_axes
from kiwi.hlo.host_memory import HOST_MEMORY
from kiwi.hlo.jax_internals import MeshContext
from kiwi.mesh import DeviceMesh, TensorSharding, axes_of_mesh
from kiwi.messages import topics


@dataclass(frozen=True)
class JitOptions:
    """The options that `kiwi.jit` shares with `jax.jit`. Positions and names are tuples."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None

    @classmethod
    def of(cls, fun: Callable[..., Any], given: Mapping[str, Any]) -> "JitOptions":
        """Returns the options of a function. Its signature supplies the names of positions, and the
        positions of names.

        - `given`: the options as `jax.jit` takes them.

        **Raises:** `InvalidArgumentError` if `fun` is no function, if a name or position does not
        exist, or if an argument is both static and donated.
        """
        check_function(fun)
        parameters, known = _positional_parameters(fun), parameter_names(fun)
        for kind in ("static_argnames", "donate_argnames"):
            unknown = [name for name in _tuple(given[kind]) if known and name not in known]
            if unknown:
                raise InvalidArgumentError(
                    f"{kind} names {unknown[0]!r}; {function_name(fun)} takes "
                    f"{', '.join(map(repr, known or ()))}.",
                    topic=topics.NO_SUCH_PARAMETER,
                )
        static, donate = (
            _complete(
                parameters, _tuple(given[f"{kind}_argnums"]), _tuple(given[f"{kind}_argnames"])
            )
            for kind in ("static", "donate")
        )
        if set(static[0]) & set(donate[0]) or set(static[1]) & set(donate[1]):
            raise InvalidArgumentError(
                f"Both static and donated: {sorted({*static[1]} & {*donate[1]})}.",
                topic=topics.STATIC_AND_DONATED,
                suggestion="Static arguments have no buffer to donate.",
            )
        return cls(*static, *donate, given["in_shardings"], given["out_shardings"])


def check_function(fun: Any) -> None:
    """Checks that a caller's function can be called.

    **Raises:** `InvalidArgumentError` if it cannot.
    """
    if not callable(fun):
        raise InvalidArgumentError(
            f"kiwi plans functions, not {type(fun).__name__}.", topic=topics.NOT_A_FUNCTION
        )


def _positional_parameters(fun: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def parameter_names(fun: Callable[..., Any]) -> list[str] | None:
    """Returns the names by which a function's arguments can be given; None if any name is possible
    or the signature is unknown."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _tuple(given: Any) -> tuple[Any, ...]:
    """Returns one number or name, several, or None as a tuple."""
    if given is None:
        return ()
    return (given,) if isinstance(given, int | str) else tuple(given)


def _complete(
    parameters: Sequence[str], numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    for number in numbers:
        if parameters and not -len(parameters) <= number < len(parameters):
            raise InvalidArgumentError(
                f"Argument number {number} does not exist; the function takes {len(parameters)}.",
                topic=topics.NO_SUCH_POSITION,
            )
    positive = {n % len(parameters) if parameters else n for n in numbers}
    positive |= {parameters.index(name) for name in names if name in parameters}
    named = {*names, *(parameters[n] for n in positive if n < len(parameters))}
    return tuple(sorted(positive)), tuple(sorted(named))


@dataclass(frozen=True, eq=False)
class Arguments:
    """A call's arguments, flattened as `jax.jit` does.

    - `leaves`, `tree`: the dynamic arguments, flattened from a pair (positional, by name). Static
      positional arguments are None in the pair.
    - `shapes`: the types of the leaves, without shardings.
    - `typed`: for each leaf, the sharding over Explicit axes in its type, or None.
    - `asked`: for each leaf, the sharding that the caller asks for, or None: the sharding of a
      `jax.ShapeDtypeStruct`, or a sharding over Explicit axes that cuts the array.
    - `static`, `static_kwargs`: the static arguments, by position and by name.
    - `key`: the key under which plans are cached.
    """

    leaves: Sequence[Any]
    tree: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    typed: tuple[NamedSharding | None, ...]
    asked: tuple[NamedSharding | None, ...]
    static: Mapping[int, Any]
    static_kwargs: Mapping[str, Any]
    key: Hashable

    @classmethod
    def of(
        cls,
        fun: Callable[..., Any],
        options: JitOptions,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> "Arguments":
        """Returns the flattened arguments of a call `fun(*args, **kwargs)`.

        **Raises:** `InvalidArgumentError` for a leaf that is no array, or a static argument that
        cannot be hashed.
        """
        static = {i: args[i] for i in options.static_argnums if i < len(args)}
        static_kwargs = {k: kwargs[k] for k in options.static_argnames if k in kwargs}
        dynamic = tuple(None if i in static else argument for i, argument in enumerate(args))
        dynamic_kwargs = {k: value for k, value in kwargs.items() if k not in static_kwargs}
        leaves, tree = jax.tree.flatten((dynamic, dynamic_kwargs))
        shapes = tuple(_shape_of(fun, tree, k, leaf) for k, leaf in enumerate(leaves))
        types = tuple((aval.shape, aval.dtype, aval.weak_type) for aval in shapes)
        named = tuple(sorted(static_kwargs.items()))
        key = _key(tree, types, tuple(sorted(static.items())), named)
        typed = tuple(map(_explicit_sharding, leaves))
        asked = tuple(map(_asked_sharding, leaves, typed))
        return cls(leaves, tree, shapes, typed, asked, static, static_kwargs, key)

    def put_together(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments with these leaves, static arguments included."""
        positional, keywords = jax.tree.unflatten(self.tree, leaves)
        full = [self.static.get(i, argument) for i, argument in enumerate(positional)]
        return full, {**keywords, **self.static_kwargs}


def _key(*parts: Any) -> Hashable:
    """Returns a hashable key.

    **Raises:** `InvalidArgumentError` if a static argument cannot be hashed.
    """
    try:
        hash(parts)
    except TypeError as error:
        raise InvalidArgumentError(
            f"A static argument cannot be hashed: {error}.",
            topic=topics.STATIC_UNHASHABLE,
            suggestion="Static arguments must be hashable, as in jax.jit.",
        ) from error
    return parts


@dataclass(frozen=True, eq=False)
class Call(Arguments):
    """A call of a function `fun`, with its arguments.

    - `paths`: the names of the leaves, such as `state.params['w']`.
    - `donated`: the positions of the leaves whose buffers the caller donates.
    - `given_shardings`: the shardings that the caller fixes, by position.
    - `function`: `fun` as a function of the flat leaves.
    - `context`: the meshes in the caller's context, under which `fun` is traced.
    - `name`: the function's name.
    - `options`: the options that the call was bound with.
    """

    paths: tuple[str, ...]
    donated: tuple[int, ...]
    given_shardings: Mapping[int, Any]
    function: Callable[..., Any]
    context: MeshContext
    name: str
    options: JitOptions

    @property
    def traced_types(self) -> list[jax.ShapeDtypeStruct]:
        """The types of the leaves that the function is traced with, Explicit axes included."""
        return [
            aval if sharding is None else aval.update(sharding=sharding)
            for aval, sharding in zip(self.shapes, self.typed, strict=True)
        ]

    @property
    def traced_key(self) -> Hashable:
        """The key of a trace: `key`, the meshes of the context, and the arguments' own
        shardings."""
        return self.key, self.context, self.typed, self.asked

    @property
    def mesh(self) -> Mesh | AbstractMesh | None:
        """The mesh of the caller's context; without one, the mesh of the arguments' own shardings;
        None if there is neither."""
        meshes = (sharding.mesh for sharding in (*self.asked, *self.typed) if sharding is not None)
        return self.context.mesh or next(meshes, None)


def misfit(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Returns why a function's signature does not take some arguments; None if it takes them, or if
    the function has no signature."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # Functions written in C have no signature.
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _misfit_error(fun: Callable[..., Any], reason: str) -> InvalidFunctionError:
    return InvalidFunctionError(
        f"{function_name(fun)}{inspect.signature(fun)} does not take these arguments: {reason}.",
        topic=topics.ARGUMENTS_MISFIT,
        suggestion="Pass the arguments one by one; a tuple of them needs a star: "
        "kiwi.plan(step, *make_args()).",
    )


def bind(
    fun: Callable[..., Any], options: JitOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Call:
    """Binds a function to arguments and returns the call.

    **Raises:** `InvalidFunctionError` if there is no array argument; `InvalidArgumentError` for a
    leaf that is no array, or a static argument that cannot be hashed; `ShardingConflictError` if
    `in_shardings` does not fit the arguments.
    """
    arguments = Arguments.of(fun, options, args, kwargs)
    if not arguments.leaves:
        raise InvalidFunctionError(
            f"The call of {function_name(fun)} has no array argument.",
            topic=topics.NO_ARRAY,
        )

    def flat_function(*flat: Any) -> Any:
        positional, keywords = arguments.put_together(flat)
        try:
            return fun(*positional, **keywords)
        except TypeError as error:
            reason = misfit(fun, positional, keywords)
            if reason is None:
                raise
            raise _misfit_error(fun, reason) from error

    # So JAX's errors during tracing name the user's function and file.
    flat_function.__signature__ = inspect.signature(flat_function)  # type: ignore[attr-defined]
    flat_function.__wrapped__ = fun  # type: ignore[attr-defined]
    paths, parameters = _leaf_paths(arguments.tree), _positional_parameters(fun)
    dynamic, _ = jax.tree.unflatten(arguments.tree, arguments.leaves)
    flat_shardings = flatten_prefix(options.in_shardings, dynamic, "in_shardings")
    return Call(
        **{field.name: getattr(arguments, field.name) for field in fields(arguments)},
        paths=tuple(_path_name(path, parameters) for path in paths),
        donated=tuple(k for k, path in enumerate(paths) if _is_donated(path, options)),
        given_shardings={
            k: sharding for k, sharding in enumerate(flat_shardings) if sharding is not None
        },
        function=flat_function,
        context=MeshContext.current(),
        name=function_name(fun),
        options=options,
    )


def _leaf_paths(tree: Any) -> list[Any]:
    """Returns the path of each leaf in the pair (positional, by name) of `Arguments.tree`."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    return [path for path, _ in jax.tree_util.tree_leaves_with_path(numbered)]


def function_name(fun: Callable[..., Any]) -> str:
    """Returns the name of a function for messages."""
    return getattr(fun, "__name__", repr(fun))


def _path_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """Returns a path below (args, kwargs) as the user would write it."""
    head: Any = path[1]
    if isinstance(head, jax.tree_util.SequenceKey):
        name = parameters[head.idx] if head.idx < len(parameters) else f"args[{head.idx}]"
    else:
        name = str(head.key)
    return str(name) + jax.tree_util.keystr(tuple(path[2:]))


def _shape_of(fun: Callable[..., Any], tree: Any, number: int, leaf: Any) -> jax.ShapeDtypeStruct:
    try:
        aval = jax.typeof(leaf)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    except (TypeError, AttributeError) as error:
        path = _leaf_paths(tree)[number]
        name = _path_name(path, _positional_parameters(fun))
        raise InvalidArgumentError(
            f"Argument {name} is {type(leaf).__name__}, not an array.",
            topic=topics.NOT_AN_ARRAY,
            cause=f"{str(error).rstrip('.')}.",
            suggestion=_suggestion_for(leaf, is_whole=len(path) == 2),
        ) from error


def _suggestion_for(leaf: Any, *, is_whole: bool) -> str | None:
    """Returns how to pass a value that is no array; None if its kind is not known. `is_whole`:
    whether the value is a whole argument, and not a part of one."""
    if isinstance(leaf, np.ndarray):
        return f"Convert it to numbers: jax has no arrays of dtype {leaf.dtype}."
    if hasattr(leaf, "__array__"):
        return "Convert it with jax.numpy.asarray."
    if not isinstance(leaf, str | bytes | enum.Enum | type) and not inspect.isroutine(leaf):
        return None
    if is_whole:
        return (
            "Name the argument in static_argnums or static_argnames. For the command line, "
            "decorate the function with kiwi.jit(static_argnums=...)."
        )
    return (
        "Take it out of the argument and pass it as one of its own, named in static_argnums: a "
        "part of an argument cannot be static."
    )


def _explicit_sharding(leaf: Any) -> NamedSharding | None:
    """Returns the sharding in the type of an argument, if its mesh has Explicit axes."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        sharding = leaf.sharding
    else:
        sharding = jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None
    if not isinstance(sharding, NamedSharding) or not has_explicit_axes(sharding.mesh):
        return None
    return NamedSharding(sharding.mesh, sharding.spec)


def _asked_sharding(leaf: Any, typed: NamedSharding | None) -> NamedSharding | None:
    """Returns the sharding that an argument asks for, if any."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding if isinstance(leaf.sharding, NamedSharding) else None
    if typed is None or all(entry is None for entry in typed.spec):
        return None
    spec = constrained_spec(typed, len(leaf.shape))
    return None if spec is None else NamedSharding(typed.mesh, spec)


def _is_donated(path: Sequence[Any], options: JitOptions) -> bool:
    head = path[1]
    if isinstance(head, jax.tree_util.SequenceKey):
        return head.idx in options.donate_argnums
    return str(head.key) in options.donate_argnames


def flatten_prefix(prefix: Any, full: Any, what: str) -> list[Any]:
    """Returns a sharding, or None, for each leaf of `full`, from a pytree prefix of shardings.
    `what` names the option in errors.

    **Raises:** `ShardingConflictError` if `prefix` is no prefix of `full`.
    """
    try:
        spread = jax.tree_util.tree_broadcast(prefix, full, is_leaf=_is_sharding_leaf)
    except ValueError as error:
        reason = str(error).replace("broadcast_prefix prefix_tree", what)
        raise ShardingConflictError(
            f"{what} does not fit the pytree that it is for: {reason}",
            topic=topics.NOT_A_PREFIX,
            suggestion=f"{what} must be a pytree prefix, as in jax.jit.",
        ) from error
    return jax.tree.structure(full).flatten_up_to(spread)


def result_shardings(options: JitOptions, out_tree: Any) -> list[Any]:
    """Returns, for each flat result, its sharding in `out_shardings`, or None; raises as
    `flatten_prefix` does."""
    shell = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
    return flatten_prefix(options.out_shardings, shell, "out_shardings")


def _is_sharding_leaf(node: Any) -> bool:
    return node is None or isinstance(node, PartitionSpec | jax.sharding.Sharding)


def to_tensor_sharding(
    given: Any, shape: tuple[int, ...], mesh: DeviceMesh, what: str
) -> TensorSharding:
    """Returns the layout on the plan's mesh of a caller's `PartitionSpec` or `NamedSharding`.
    `what` names the array in errors.

    **Raises:** `ShardingConflictError` if the sharding contradicts the mesh or the shape.
    """
    spec = given.spec if isinstance(given, jax.sharding.NamedSharding) else given
    if not isinstance(spec, jax.sharding.PartitionSpec):
        raise ShardingConflictError(
            f"The sharding {given!r} given for {what} is not understood.",
            topic=topics.NOT_A_SHARDING,
            suggestion="A PartitionSpec or a NamedSharding, or None to leave it to the planner.",
        )
    if isinstance(given, jax.sharding.NamedSharding):
        _check_memory_kind(given, what)
        sizes = {name: given.mesh.shape[name] for name in given.mesh.axis_names}
        planned = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        if sizes != planned:
            raise ShardingConflictError(
                f"The sharding given for {what} is on the mesh {sizes}, the plan on {planned}.",
                topic=topics.OTHER_MESH,
            )
    try:
        sharding = TensorSharding.from_partition_spec(spec, len(shape), mesh.axis_names)
        sharding.check(shape, mesh.shape)
    except ShardingConflictError as error:
        what = f"The sharding {spec} given for {what} of shape {shape} does not fit: {error.what}"
        raise error.changed(what=what) from error
    return sharding.without_trivial_axes(mesh.shape)


def on_plan_mesh(given: Any, mesh: DeviceMesh) -> Any:
    """Returns a `PartitionSpec` over the plan's axes for a sharding on another mesh with as many
    devices (`kiwi.mesh.axes_of_mesh`). A sharding on no such mesh is returned unchanged."""
    if not isinstance(given, NamedSharding):
        return given
    axes = axes_of_mesh(mesh, given.mesh)
    if axes is None:
        return given

    def entry(names: Any) -> Any:
        if names is None or names is PartitionSpec.UNCONSTRAINED:
            return names
        axis_names = names if isinstance(names, tuple) else (names,)
        return tuple(mesh.axis_names[axis] for name in axis_names for axis in axes[name]) or None

    return PartitionSpec(*map(entry, given.spec))


def _check_memory_kind(given: jax.sharding.NamedSharding, what: str) -> None:
    """Checks that an argument or result lies in device memory or in the host's pinned memory.

    **Raises:** `ShardingConflictError` if it does not.
    """
    kinds = {None, "device", HOST_MEMORY}
    if isinstance(given.mesh, jax.sharding.Mesh):
        kinds.add(given.mesh.devices.flat[0].default_memory().kind)
    if given.memory_kind not in kinds:
        raise ShardingConflictError(
            f"The sharding given for {what} is in the memory {given.memory_kind!r}.",
            topic=topics.OTHER_MEMORY,
            suggestion=f"The same sharding without memory_kind, or with {HOST_MEMORY!r}.",
        )
