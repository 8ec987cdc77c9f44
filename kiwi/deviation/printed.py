"""A piece as Python: a file with a function and `make_args`, as the `kiwi` command reads it.

Equations with a function of the same meaning in `jax.lax` are printed as its call, all others as
`bind` of their primitive. Loops are printed with their bodies as functions inside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from kiwi.deviation.pieces import Node, Piece
from kiwi.errors import InvalidFunctionError
from kiwi.hlo.program import Literal
from kiwi.messages import topics

FUNCTION = "function"
"""The name of the function that is printed."""

_INDENT = "    "

_HEAD = """import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives


def spec(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)
"""

_AS_NAMED = {
    **{name: name for name in ("abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "cos")},
    **{name: name for name in ("div", "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt")},
    **{name: name for name in ("imag", "is_finite", "le", "log", "log1p", "logistic", "lt")},
    **{name: name for name in ("max", "min", "mul", "ne", "neg", "pow", "real", "rem", "round")},
    **{name: name for name in ("rsqrt", "select_n", "sign", "sin", "sqrt", "square", "sub")},
    **{name: name for name in ("tan", "tanh", "stop_gradient", "complex", "conj")},
    **{"add_any": "add", "and": "bitwise_and", "or": "bitwise_or", "not": "bitwise_not"},
}
"""Primitives whose operands are the arguments of a function of `jax.lax`, without others."""

_WITH_PARAMS: Mapping[str, tuple[str, ...]] = {
    "argmax": ("axes", "index_dtype"),
    "broadcast_in_dim": ("shape", "broadcast_dimensions"),
    "convert_element_type": ("new_dtype",),
    "cumsum": ("axis", "reverse"),
    "cumprod": ("axis", "reverse"),
    "cummax": ("axis", "reverse"),
    "integer_pow": ("y",),
    "pad": ("padding_config",),
    "reduce_max": ("axes",),
    "reduce_min": ("axes",),
    "reduce_prod": ("axes",),
    "reduce_sum": ("axes",),
    "rev": ("dimensions",),
    "slice": ("start_indices", "limit_indices", "strides"),
    "squeeze": ("dimensions",),
    "transpose": ("permutation",),
}
"""Primitives whose function of `jax.lax` takes these parameters behind the operands."""


def printed(piece: Piece, comment: str = "") -> str:
    """The text of a file. `comment` stands at its head, as a docstring.

    **Raises:** `InvalidFunctionError` if a parameter of an equation cannot be written as Python.
    """
    names = {value: f"x{number}" for number, value in enumerate(piece.arguments)}
    arguments = ", ".join(names[value] for value in piece.arguments)
    lines = [f"def {FUNCTION}({arguments}):", *_body(piece.nodes, names)]
    results = ", ".join(names[value] for value in piece.results)
    types = [f"{_INDENT}{_INDENT}{_type(type_)}," for type_ in piece.argument_types]
    made = ["def make_args():", f"{_INDENT}return (", *types, f"{_INDENT})"]
    head = f'"""{comment.strip()}\n"""\n{_HEAD}' if comment else _HEAD
    parts = [head, *lines, f"{_INDENT}return [{results}]", "", "", *made]
    return head + "\n\n" + "\n".join(parts[1:]) + "\n"


def loaded(text: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The function of a printed text, and the types of its arguments."""
    names: dict[str, Any] = {}
    exec(compile(text, "<printed piece>", "exec"), names)
    return names[FUNCTION], names["make_args"]()


def _body(nodes: Sequence[Node], names: dict[int, str]) -> list[str]:
    """The lines of nodes; those of one phase together in its name scope."""
    lines: list[str] = []
    scope = ""
    for node in nodes:
        if node.scope != scope and node.scope:
            lines.append(f'{_INDENT}with jax.named_scope("{node.scope}"):')
        scope = node.scope
        depth = 2 if scope else 1
        for line in _lines(node, names):
            lines.append(_INDENT * depth + line)
    return lines


def _lines(node: Node, names: dict[int, str]) -> list[str]:
    operands = [_operand(given, names) for given in node.inputs]
    start = len(names)
    for output in node.writes:
        names[output] = f"x{len(names)}"
    results = [names[o] if o is not None else "_" for o in node.outputs]
    if node.name == "scan":
        return _scan(node, operands, results, start)
    called = _called(node, operands)
    if node.primitive.multiple_results:
        return [f"{', '.join(results)}, = {called}" if len(results) == 1 else
                f"{', '.join(results)} = {called}"]  # fmt: skip
    return [f"{results[0]} = {called}"]


def _called(node: Node, operands: list[str]) -> str:
    name, params = node.name, node.params
    joined = ", ".join(operands)
    if name in _AS_NAMED and _is_default(params):
        return f"lax.{_AS_NAMED[name]}({joined})"
    if name in _WITH_PARAMS:
        given = {p: params[p] for p in _WITH_PARAMS[name]}
        if name == "argmax":
            return f"lax.argmax({joined}, {given['axes'][0]}, {_value(given['index_dtype'])})"
        return f"lax.{name}({joined}, {', '.join(map(_value, given.values()))})"
    special = _SPECIAL.get(name)
    if special is not None:
        return special(node, operands)
    return _bound(node, joined)


def _is_default(params: Mapping[str, Any]) -> bool:
    return all(value is None for value in params.values())


def _reshape(node: Node, operands: list[str]) -> str:
    return f"lax.reshape({operands[0]}, {_value(node.params['new_sizes'])})"


def _iota(node: Node, operands: list[str]) -> str:
    params = node.params
    shape, dimension = _value(params["shape"]), params["dimension"]
    return f"lax.broadcasted_iota({_value(params['dtype'])}, {shape}, {dimension})"


def _concatenate(node: Node, operands: list[str]) -> str:
    return f"lax.concatenate([{', '.join(operands)}], {node.params['dimension']})"


def _named(node: Node, operands: list[str], names: Sequence[str], numbers: str = "") -> str:
    given = "".join(f", {name}={_value(node.params[name])}" for name in names)
    return f"lax.{numbers or node.name}({', '.join(operands)}{given})"


def _dot(node: Node, operands: list[str]) -> str:
    names = ("dimension_numbers", "precision", "preferred_element_type")
    return _named(node, operands, names)


def _convolution(node: Node, operands: list[str]) -> str:
    names = (
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers"),
        *("feature_group_count", "batch_group_count", "precision", "preferred_element_type"),
    )
    return _named(node, operands, names)


def _fft(node: Node, operands: list[str]) -> str:
    kind = f"lax.FftType.{lax.FftType(node.params['fft_type']).name}"
    return f"lax.fft({operands[0]}, {kind}, {_value(node.params['fft_lengths'])})"


def _gather(node: Node, operands: list[str]) -> str:
    names = (
        *("dimension_numbers", "slice_sizes", "unique_indices", "indices_are_sorted"),
        *("mode", "fill_value"),
    )
    return _named(node, operands, names)


def _scatter_add(node: Node, operands: list[str]) -> str:
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    return _named(node, operands, names, "scatter_add")


_SPECIAL: Mapping[str, Callable[[Node, list[str]], str]] = {
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "fft": _fft,
    "gather": _gather,
    "iota": _iota,
    "reshape": _reshape,
    "scatter-add": _scatter_add,
}


def _bound(node: Node, operands: str) -> str:
    name = f"{node.name.replace('-', '_')}_p"
    if not hasattr(jex.primitives, name):
        raise InvalidFunctionError(
            f"An equation of the primitive {node.name} cannot be written as Python.",
            topic=topics.NOT_PRINTABLE,
            cause=f"jax.extend.core.primitives has no {name}.",
        )
    given = "".join(f", {key}={_value(value)}" for key, value in node.params.items())
    return f"primitives.{name}.bind({operands}{given})"


def _scan(node: Node, operands: list[str], results: list[str], start: int) -> list[str]:
    params = node.params
    consts, carried = params["num_consts"], params["num_carry"]
    body = f"body_{start}"
    region = params["jaxpr"]
    jaxpr = region.jaxpr
    names = {number: f"y{number}" for number in range(len(jaxpr.invars))}
    numbers = {variable: number for number, variable in enumerate(jaxpr.invars)}
    nodes = _nodes_of(region, numbers)
    given = [names[number] for number in range(len(jaxpr.invars))]
    inner = _region_lines(nodes, names)
    ends = [
        _operand(_literal(v), names) if isinstance(v, jex.Literal) else names[numbers[v]]
        for v in jaxpr.outvars
    ]
    fixed = [f"{name}={operand}" for name, operand in zip(given, operands[:consts], strict=False)]
    carry, element = given[consts : consts + carried], given[consts + carried :]
    signature = ", ".join(["carry", "element", *fixed])
    stacked = operands[consts + carried :]
    left = f"({_tuple(results[:carried])}, {_tuple(results[carried:])})"
    return [
        f"def {body}({signature}):",
        *[f"{_INDENT}{_tuple(carry)} = carry"] * bool(carry),
        *[f"{_INDENT}{_tuple(element)} = element"] * bool(element),
        *[_INDENT + line for line in inner],
        f"{_INDENT}return {_tuple(ends[:carried])}, {_tuple(ends[carried:])}",
        f"{left} = lax.scan({body}, {_tuple(operands[consts : consts + carried])}, "
        f"{_tuple(stacked)}, length={params['length']}, reverse={params['reverse']}, "
        f"unroll={params['unroll']})",
    ]


def _nodes_of(region: Any, numbers: dict[Any, int]) -> list[Node]:
    """The equations of a region as nodes, its variables numbered."""
    if region.consts:
        raise InvalidFunctionError(
            "A loop with arrays in its body cannot be written as Python.",
            topic=topics.NOT_PRINTABLE,
            cause=f"Its body captures {len(region.consts)} arrays.",
            suggestion="Pass them as arguments.",
        )
    nodes = []
    for eqn in region.jaxpr.eqns:
        inputs = tuple(
            _literal(v) if isinstance(v, jex.Literal) else numbers[v] for v in eqn.invars
        )
        outputs: list[int | None] = []
        for variable in eqn.outvars:
            is_dropped = isinstance(variable, jex.DropVar)
            numbers.setdefault(variable, len(numbers)) if not is_dropped else None
            outputs.append(None if is_dropped else numbers[variable])
        nodes.append(Node(eqn.primitive, eqn.params, inputs, tuple(outputs), "", ""))
    return nodes


def _region_lines(nodes: Sequence[Node], names: dict[int, str]) -> list[str]:
    lines = []
    for node in nodes:
        if node.name in _CALLS:
            lines += _call(node, names)
            continue
        operands = [_operand(given, names) for given in node.inputs]
        start = len(names)
        for output in node.writes:
            names[output] = f"y{output}"
        results = [names[o] if o is not None else "_" for o in node.outputs]
        if node.name == "scan":
            lines += _scan(node, operands, results, start)
        elif node.primitive.multiple_results:
            lines.append(f"{_tuple(results)} = {_called(node, operands)}")
        else:
            lines.append(f"{results[0]} = {_called(node, operands)}")
    return lines


_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr"}
"""Calls inside of loops, which are written out."""


def _call(node: Node, names: dict[int, str]) -> list[str]:
    region = node.params[_CALLS[node.name]]
    region = region if isinstance(region, jex.ClosedJaxpr) else jex.ClosedJaxpr(region, ())
    inner: dict[Any, int] = {v: number for number, v in enumerate(region.jaxpr.invars)}
    mark = f"z{len(names)}_"
    inner_names = {number: _operand(given, names) for number, given in enumerate(node.inputs)}
    lines = []
    for each in _nodes_of(region, inner):
        operands = [_operand(given, inner_names) for given in each.inputs]
        for output in each.writes:
            inner_names[output] = f"{mark}{output}"
        results = [inner_names[o] if o is not None else "_" for o in each.outputs]
        if each.name in _CALLS:
            lines += _call(each, inner_names)
        else:
            left = _tuple(results) if each.primitive.multiple_results else results[0]
            lines.append(f"{left} = {_called(each, operands)}")
    for output, variable in zip(node.outputs, region.jaxpr.outvars, strict=True):
        if output is not None:
            is_literal = isinstance(variable, jex.Literal)
            given = _literal(variable) if is_literal else None
            value = _operand(given, names) if given else inner_names[inner[variable]]
            names[output] = value
    return lines


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def _literal(atom: Any) -> Literal:
    """A literal of a jaxpr, in its own dtype."""
    return Literal(np.asarray(atom.val, atom.aval.dtype))


def _operand(given: int | Literal | None, names: Mapping[int, str]) -> str:
    if isinstance(given, Literal):
        array = np.asarray(given.value)
        return f"jnp.array({_scalar(array)}, {_value(array.dtype)})"
    assert given is not None
    return names[given]


def _scalar(array: np.ndarray) -> str:
    value = array.astype(np.float64).item() if jnp.issubdtype(array.dtype, jnp.floating) else None
    value = array.item() if value is None else value
    text = repr(value)
    return f"float({text!r})" if text in ("inf", "-inf", "nan") else text


def _type(type_: jax.ShapeDtypeStruct) -> str:
    shape = "".join(f", {size}" for size in type_.shape)
    if jnp.issubdtype(type_.dtype, jax.dtypes.prng_key):
        return f"jax.eval_shape(lambda: jax.random.split(jax.random.key(0), {type_.shape}))"
    return f"spec({_value(type_.dtype)}{shape})"


def _value(value: Any) -> str:
    """A parameter as Python."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and hasattr(value, "dtype")):
        return f"jnp.{_dtype_name(jnp.dtype(value))}"
    if isinstance(value, lax.GatherScatterMode):
        return f"lax.GatherScatterMode.{value.name}"
    kinds = (lax.GatherDimensionNumbers, lax.ScatterDimensionNumbers, lax.ConvDimensionNumbers)
    if isinstance(value, kinds):
        return f"lax.{value!r}"
    if isinstance(value, lax.Precision):
        return f"lax.Precision.{value.name}"
    if isinstance(value, tuple | list):
        return _tuple([_value(each) for each in value])
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    raise InvalidFunctionError(
        f"A parameter of an equation cannot be written as Python: {value!r}",
        topic=topics.NOT_PRINTABLE,
        cause=f"It is {type(value).__name__}.",
    )


def _dtype_name(dtype: Any) -> str:
    return "bool_" if dtype == np.dtype(bool) else str(dtype)
