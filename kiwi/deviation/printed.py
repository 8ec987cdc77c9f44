"""A piece as Python text: a file with a function and `make_args`, as the `kiwi` command reads it.

An equation is printed as a call of the `jax.lax` function with the same meaning. An equation
without such a function is printed as `bind` of its primitive. The bodies of loops are printed as
inner functions.
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
"""For each primitive that a `jax.lax` function computes from the operands alone, the function's
name."""

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
"""For each primitive whose `jax.lax` function takes parameters behind the operands, these
parameters."""


def printed(piece: Piece, comment: str = "") -> str:
    """Returns the text of a file. `comment` becomes the file's docstring.

    **Raises:** `InvalidFunctionError` if an equation or one of its parameters cannot be written as
    Python.
    """
    names = {value: f"x{number}" for number, value in enumerate(piece.arguments)}
    arguments = ", ".join(names[value] for value in piece.arguments)
    lines = [f"def {FUNCTION}({arguments}):", *_body(piece.nodes, names)]
    results = ", ".join(names[value] for value in piece.results)
    types = [f"{_INDENT}{_INDENT}{_type(type_)}," for type_ in piece.argument_types]
    make_args = ["def make_args():", f"{_INDENT}return (", *types, f"{_INDENT})"]
    head = f'"""{comment.strip()}\n"""\n{_HEAD}' if comment else _HEAD
    parts = [head, *lines, f"{_INDENT}return [{results}]", "", "", *make_args]
    return head + "\n\n" + "\n".join(parts[1:]) + "\n"


def loaded(text: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Executes a printed text, and returns its function and the types of the arguments."""
    names: dict[str, Any] = {}
    exec(compile(text, "<printed piece>", "exec"), names)
    return names[FUNCTION], names["make_args"]()


def _body(nodes: Sequence[Node], names: dict[int, str]) -> list[str]:
    """Returns the lines of nodes. Consecutive nodes of one phase share a name scope."""
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
    operands = [_operand(atom, names) for atom in node.inputs]
    start = len(names)
    for output in node.writes:
        names[output] = f"x{len(names)}"
    results = [
        names[maybe_output] if maybe_output is not None else "_" for maybe_output in node.outputs
    ]
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
        values = {param: params[param] for param in _WITH_PARAMS[name]}
        if name == "argmax":
            return f"lax.argmax({joined}, {values['axes'][0]}, {_value(values['index_dtype'])})"
        return f"lax.{name}({joined}, {', '.join(map(_value, values.values()))})"
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
    keywords = "".join(f", {name}={_value(node.params[name])}" for name in names)
    return f"lax.{numbers or node.name}({', '.join(operands)}{keywords})"


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
    keywords = "".join(f", {key}={_value(value)}" for key, value in node.params.items())
    return f"primitives.{name}.bind({operands}{keywords})"


def _scan(node: Node, operands: list[str], results: list[str], start: int) -> list[str]:
    params = node.params
    consts, carried = params["num_consts"], params["num_carry"]
    body = f"body_{start}"
    region = params["jaxpr"]
    jaxpr = region.jaxpr
    names = {number: f"y{number}" for number in range(len(jaxpr.invars))}
    numbers = {variable: number for number, variable in enumerate(jaxpr.invars)}
    nodes = _nodes_of(region, numbers)
    inputs = [names[number] for number in range(len(jaxpr.invars))]
    inner = _region_lines(nodes, names)
    ends = [
        _operand(_literal(outvar), names)
        if isinstance(outvar, jex.Literal)
        else names[numbers[outvar]]
        for outvar in jaxpr.outvars
    ]
    fixed = [f"{name}={operand}" for name, operand in zip(inputs, operands[:consts], strict=False)]
    carry, element = inputs[consts : consts + carried], inputs[consts + carried :]
    signature = ", ".join(["carry", "element", *fixed])
    stacked = operands[consts + carried :]
    targets = f"({_tuple(results[:carried])}, {_tuple(results[carried:])})"
    return [
        f"def {body}({signature}):",
        *[f"{_INDENT}{_tuple(carry)} = carry"] * bool(carry),
        *[f"{_INDENT}{_tuple(element)} = element"] * bool(element),
        *[_INDENT + line for line in inner],
        f"{_INDENT}return {_tuple(ends[:carried])}, {_tuple(ends[carried:])}",
        f"{targets} = lax.scan({body}, {_tuple(operands[consts : consts + carried])}, "
        f"{_tuple(stacked)}, length={params['length']}, reverse={params['reverse']}, "
        f"unroll={params['unroll']})",
    ]


def _nodes_of(region: Any, numbers: dict[Any, int]) -> list[Node]:
    """Returns the equations of a region as nodes. New variables get numbers in `numbers`."""
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
            _literal(invar) if isinstance(invar, jex.Literal) else numbers[invar]
            for invar in eqn.invars
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
        operands = [_operand(atom, names) for atom in node.inputs]
        start = len(names)
        for output in node.writes:
            names[output] = f"y{output}"
        results = [
            names[maybe_output] if maybe_output is not None else "_"
            for maybe_output in node.outputs
        ]
        if node.name == "scan":
            lines += _scan(node, operands, results, start)
        elif node.primitive.multiple_results:
            lines.append(f"{_tuple(results)} = {_called(node, operands)}")
        else:
            lines.append(f"{results[0]} = {_called(node, operands)}")
    return lines


_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr"}
"""For each call that is inlined in a loop's body, the parameter with its jaxpr."""


def _call(node: Node, names: dict[int, str]) -> list[str]:
    region = node.params[_CALLS[node.name]]
    region = region if isinstance(region, jex.ClosedJaxpr) else jex.ClosedJaxpr(region, ())
    inner: dict[Any, int] = {
        argument: number for number, argument in enumerate(region.jaxpr.invars)
    }
    mark = f"z{len(names)}_"
    inner_names = {number: _operand(atom, names) for number, atom in enumerate(node.inputs)}
    lines = []
    for inner_node in _nodes_of(region, inner):
        operands = [_operand(atom, inner_names) for atom in inner_node.inputs]
        for output in inner_node.writes:
            inner_names[output] = f"{mark}{output}"
        results = [
            inner_names[inner_output] if inner_output is not None else "_"
            for inner_output in inner_node.outputs
        ]
        if inner_node.name in _CALLS:
            lines += _call(inner_node, inner_names)
        else:
            targets = _tuple(results) if inner_node.primitive.multiple_results else results[0]
            lines.append(f"{targets} = {_called(inner_node, operands)}")
    for output, variable in zip(node.outputs, region.jaxpr.outvars, strict=True):
        if output is not None:
            is_literal = isinstance(variable, jex.Literal)
            atom = _literal(variable) if is_literal else None
            value = _operand(atom, names) if atom else inner_names[inner[variable]]
            names[output] = value
    return lines


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def _literal(atom: Any) -> Literal:
    """Returns a literal of a jaxpr as an array of its dtype."""
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
    """Returns a parameter as Python text."""
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
        return _tuple([_value(element) for element in value])
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
