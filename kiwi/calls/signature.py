"""Arguments as `jax.jit` treats them: static ones, donated ones, pytrees, given shardings."""

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from kiwi.errors import InvalidArgumentError, InvalidFunctionError, ShardingConflictError
from kiwi.hlo.explicit_axes import constrained_spec, has_explicit_axes
from kiwi.hlo.host_memory import HOST_MEMORY
from kiwi.hlo.jax_internals import MeshContext
from kiwi.mesh import DeviceMesh, TensorSharding, axes_of_mesh
from kiwi.messages import topics


@dataclass(frozen=True)
class JitOptions:
    """The options that `kiwi.jit` shares with `jax.jit`; numbers and names as tuples."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    in_shardings: Any = None
    out_shardings: Any = None

    @classmethod
    def of(cls, fun: Callable[..., Any], given: Mapping[str, Any]) -> "JitOptions":
        """Completes positions by names and names by positions, from the signature of `fun`.

        - `given`: the options as `jax.jit` takes them.

        **Raises:** `InvalidArgumentError`.
        """
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


def _positional_parameters(fun: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def parameter_names(fun: Callable[..., Any]) -> list[str] | None:
    """The names by which arguments can be given; None where any name can."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in kinds]


def _tuple(given: Any) -> tuple[Any, ...]:
    """One number or name, several, or None."""
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
    """A call's arguments, taken apart as `jax.jit` does.

    - `leaves`, `tree`: the dynamic arguments, as a pair (positional, by name). Static positional
      arguments are None in it.
    - `shapes`: the types of the leaves, without shardings.
    - `typed`: for each leaf the sharding over Explicit axes in its type, or None.
    - `asked`: for each leaf the sharding that the caller asks for: that of a
      `jax.ShapeDtypeStruct`, or one over Explicit axes that cuts the array.
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
        """**Raises:** `InvalidArgumentError` for a leaf that is no array or a static argument that
        cannot be hashed."""
        static = {i: args[i] for i in options.static_argnums if i < len(args)}
        static_kwargs = {k: kwargs[k] for k in options.static_argnames if k in kwargs}
        dynamic = tuple(None if i in static else a for i, a in enumerate(args))
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in static_kwargs}
        leaves, tree = jax.tree.flatten((dynamic, dynamic_kwargs))
        shapes = tuple(_shape_of(fun, tree, k, leaf) for k, leaf in enumerate(leaves))
        types = tuple((s.shape, s.dtype, s.weak_type) for s in shapes)
        named = tuple(sorted(static_kwargs.items()))
        key = _key(tree, types, tuple(sorted(static.items())), named)
        typed = tuple(map(_explicit_sharding, leaves))
        asked = tuple(map(_asked_sharding, leaves, typed))
        return cls(leaves, tree, shapes, typed, asked, static, static_kwargs, key)

    def put_together(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with these leaves, static ones included."""
        positional, keywords = jax.tree.unflatten(self.tree, leaves)
        full = [self.static.get(i, a) for i, a in enumerate(positional)]
        return full, {**keywords, **self.static_kwargs}


def _key(*parts: Any) -> Hashable:
    """A hashable key; raises `InvalidArgumentError` if a static argument cannot be hashed."""
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
    """One call, with its arguments.

    - `paths`: the names of the leaves, such as `state.params['w']`.
    - `donated`: positions of the leaves whose buffers the caller gives away.
    - `given_shardings`: the shardings that the caller fixes, by position.
    - `function`: `fun` as a function of the flat leaves.
    - `context`: the meshes that the caller has set, under which `fun` is traced.
    - `name`: the function's name. `options`: how it was bound.
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
            s if t is None else s.update(sharding=t)
            for s, t in zip(self.shapes, self.typed, strict=True)
        ]

    @property
    def traced_key(self) -> Hashable:
        """The key of a trace: `key`, the context of meshes, and the given shardings."""
        return self.key, self.context, self.typed, self.asked

    @property
    def mesh(self) -> Mesh | AbstractMesh | None:
        """The mesh that the caller has in mind: that of the context, or else of the arguments."""
        given = (s.mesh for s in (*self.asked, *self.typed) if s is not None)
        return self.context.mesh or next(given, None)


def bind(
    fun: Callable[..., Any], options: JitOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Call:
    """Flattens a call's arguments.

    **Raises:** `InvalidFunctionError` if none is an array; `InvalidArgumentError` for a leaf that
    is no array, or a static argument that cannot be hashed.
    """
    arguments = Arguments.of(fun, options, args, kwargs)
    if not arguments.leaves:
        raise InvalidFunctionError(
            f"The call of {function_name(fun)} has no array argument.",
            topic=topics.NO_ARRAY,
        )

    def flat_function(*flat: Any) -> Any:
        positional, keywords = arguments.put_together(flat)
        return fun(*positional, **keywords)

    # jax's errors while it traces then name the user's function and file.
    flat_function.__signature__ = inspect.signature(flat_function)  # type: ignore[attr-defined]
    flat_function.__wrapped__ = fun  # type: ignore[attr-defined]
    paths, parameters = _leaf_paths(arguments.tree), _positional_parameters(fun)
    dynamic, _ = jax.tree.unflatten(arguments.tree, arguments.leaves)
    given = flatten_prefix(options.in_shardings, dynamic, "in_shardings")
    return Call(
        **{field.name: getattr(arguments, field.name) for field in fields(arguments)},
        paths=tuple(_path_name(path, parameters) for path in paths),
        donated=tuple(k for k, path in enumerate(paths) if _is_donated(path, options)),
        given_shardings={k: s for k, s in enumerate(given) if s is not None},
        function=flat_function,
        context=MeshContext.current(),
        name=function_name(fun),
        options=options,
    )


def _leaf_paths(tree: Any) -> list[Any]:
    """The path of each leaf below the pair of `Arguments.tree`."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    return [path for path, _ in jax.tree_util.tree_leaves_with_path(numbered)]


def function_name(fun: Callable[..., Any]) -> str:
    """The name of a function in messages."""
    return getattr(fun, "__name__", repr(fun))


def _path_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """A path below (args, kwargs) as the user would write it."""
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
        path = _path_name(_leaf_paths(tree)[number], _positional_parameters(fun))
        raise InvalidArgumentError(
            f"Argument {path} is {type(leaf).__name__}, not an array.",
            topic=topics.NOT_AN_ARRAY,
            cause=f"{str(error).rstrip('.')}.",
        ) from error


def _explicit_sharding(leaf: Any) -> NamedSharding | None:
    """The sharding in the type of an argument, if its mesh has Explicit axes."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        sharding = leaf.sharding
    else:
        sharding = jax.typeof(leaf).sharding if isinstance(leaf, jax.Array) else None
    if not isinstance(sharding, NamedSharding) or not has_explicit_axes(sharding.mesh):
        return None
    return NamedSharding(sharding.mesh, sharding.spec)


def _asked_sharding(leaf: Any, typed: NamedSharding | None) -> NamedSharding | None:
    """The sharding that an argument asks for."""
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
    """One sharding, or None, for each leaf of `full`, from a pytree prefix of shardings; raises
    `ShardingConflictError` if it is no prefix."""
    try:
        spread = jax.tree_util.tree_broadcast(prefix, full, is_leaf=_is_sharding_leaf)
    except ValueError as error:
        said = str(error).replace("broadcast_prefix prefix_tree", what)
        raise ShardingConflictError(
            f"{what} does not fit the pytree that it is for: {said}",
            topic=topics.NOT_A_PREFIX,
            suggestion=f"{what} must be a pytree prefix, as in jax.jit.",
        ) from error
    return jax.tree.structure(full).flatten_up_to(spread)


def result_shardings(options: JitOptions, out_tree: Any) -> list[Any]:
    """The sharding in `out_shardings` for each flat result, or None; raises as `flatten_prefix`."""
    shell = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
    return flatten_prefix(options.out_shardings, shell, "out_shardings")


def _is_sharding_leaf(node: Any) -> bool:
    return node is None or isinstance(node, PartitionSpec | jax.sharding.Sharding)


def to_tensor_sharding(
    given: Any, shape: tuple[int, ...], mesh: DeviceMesh, what: str
) -> TensorSharding:
    """A caller's `PartitionSpec` or `NamedSharding` on the plan's mesh; raises
    `ShardingConflictError` if it contradicts the mesh or the shape."""
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
    """A `PartitionSpec` over the plan's axes for a sharding on another mesh with as many devices,
    see `kiwi.mesh.axes_of_mesh`. A sharding that names no such mesh is returned unchanged."""
    if not isinstance(given, NamedSharding):
        return given
    axes = axes_of_mesh(mesh, given.mesh)
    if axes is None:
        return given

    def entry(names: Any) -> Any:
        if names is None or names is PartitionSpec.UNCONSTRAINED:
            return names
        own = names if isinstance(names, tuple) else (names,)
        return tuple(mesh.axis_names[axis] for name in own for axis in axes[name]) or None

    return PartitionSpec(*map(entry, given.spec))


def _check_memory_kind(given: jax.sharding.NamedSharding, what: str) -> None:
    """Raises unless an argument or result lies in device memory or in the host's pinned memory."""
    kinds = {None, "device", HOST_MEMORY}
    if isinstance(given.mesh, jax.sharding.Mesh):
        kinds.add(given.mesh.devices.flat[0].default_memory().kind)
    if given.memory_kind not in kinds:
        raise ShardingConflictError(
            f"The sharding given for {what} is in the memory {given.memory_kind!r}.",
            topic=topics.OTHER_MEMORY,
            suggestion=f"The same sharding without memory_kind, or with {HOST_MEMORY!r}.",
        )
