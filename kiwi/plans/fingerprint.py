"""The identity of a traced function, which tells whether a saved plan is for the function.

Every equation has one line: its primitive, a digest of its parameters, its operands and its result
types. Lines contain no memory addresses and no variable names, so they are equal in every process.
A plan depends only on the *structure* of the function, which leaves out the values of literals and
captured constants. The *values* include them, and tell whether the function is still the same.
"""

import difflib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kiwi.hlo.program import Equation, Literal, Program

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DIGITS = 16
MOST_DIFFERENCES = 5
"""An error lists this many differences, and the number of the others."""


@dataclass(frozen=True)
class EquationLine:
    """One equation.

    - `text`: the equation as a line for people.
    - `inputs`: its operands: `%7` for value 7, or the type of a literal.
    - `literals`: the values of its literal operands.
    """

    text: str
    inputs: tuple[str, ...]
    literals: tuple[str, ...]

    @property
    def structure(self) -> str:
        """The part of the line that planning depends on."""
        return f"{self.text} <- {' '.join(self.inputs)}"


@dataclass(frozen=True)
class Fingerprint:
    """A program's identity. `structure` and `values` are SHA-256 digests in hexadecimal."""

    structure: str
    values: str
    equations: tuple[EquationLine, ...]


def fingerprint(program: Program) -> Fingerprint:
    """Returns the identity of a traced program."""
    lines = tuple(_line(program, equation) for equation in program.equations)
    structure = hashlib.sha256()
    for value in (*program.arguments, *program.constants):
        structure.update(value_type(program, value).encode() + b"\n")
    for line in lines:
        structure.update(line.structure.encode() + b"\n")
    for loop in program.loops:
        structure.update(f"{loop}\n".encode())
    for result in program.results:
        structure.update(_operand(program, result).encode() + b"\n")
    values = hashlib.sha256(structure.digest())
    for line in lines:
        values.update(" ".join(line.literals).encode() + b"\n")
    for result in program.results:
        values.update(str(result.value).encode() if isinstance(result, Literal) else b"-")
    for array in program.constants.values():
        values.update(_array_bytes(array))
    return Fingerprint(structure.hexdigest(), values.hexdigest(), lines)


def identities(lines: Sequence[EquationLine]) -> list[str]:
    """Returns one name for each equation, unique and equal in every process, such as
    `dot_general:5f0c…#3`. A name consists of the primitive, a digest of the line without operands,
    and the number of earlier equations with the same line."""
    counts: dict[str, int] = {}
    names = []
    for line in lines:
        primitive = line.text.split("[", 1)[0].split(" ", 1)[0]
        name = f"{primitive}:{_digest(line.text)[:8]}"
        names.append(f"{name}#{counts.setdefault(name, 0)}")
        counts[name] += 1
    return names


def differences(saved: Sequence[EquationLine], found: Sequence[EquationLine]) -> list[str]:
    """Returns sentences about the first differences between the saved function and the present
    one. `found` are the lines of the present function."""
    sentences = []
    texts = [line.text for line in saved], [line.text for line in found]
    matcher = difflib.SequenceMatcher(None, *texts, autojunk=False)
    for kind, saved_start, saved_end, found_start, found_end in matcher.get_opcodes():
        if kind != "equal":
            sentences.append(
                _difference(
                    kind,
                    texts[0][saved_start:saved_end],
                    texts[1][found_start:found_end],
                    saved_start,
                )
            )
    if not sentences:
        sentences = _rewired(saved, found)
    remaining = len(sentences) - MOST_DIFFERENCES
    ending = [f"... and {remaining} further differences"] if remaining > 0 else []
    return sentences[:MOST_DIFFERENCES] + ending


def _difference(kind: str, was: Sequence[str], now: Sequence[str], place: int) -> str:
    before, after = (
        ", ".join(f"`{text}`" for text in texts[:2]) + (", ..." if len(texts) > 2 else "")
        for texts in (was, now)
    )
    if kind == "insert":
        return f"new at equation {place}: {after} ({len(now)} in all)"
    if kind == "delete":
        return f"gone from equation {place} on: {before} ({len(was)} in all)"
    return f"equation {place} was {before}, is now {after}"


def _rewired(saved: Sequence[EquationLine], found: Sequence[EquationLine]) -> list[str]:
    """Returns sentences about differing operands of equations that are otherwise the same."""
    sentences = []
    for place, (was, now) in enumerate(zip(saved, found, strict=True)):
        equation = f"equation {place} `{was.text}`"
        if was.inputs != now.inputs:
            reads = " ".join(now.inputs)
            sentences.append(f"{equation} read {' '.join(was.inputs)}, reads {reads}")
        elif was.literals != now.literals:
            has = " ".join(now.literals)
            sentences.append(f"{equation} had the literal {' '.join(was.literals)}, has {has}")
    return sentences or ["the values of captured constants, or the results, differ"]


def value_type(program: Program, value: int) -> str:
    """Returns the type of a program's value as `type_text` writes it."""
    return type_text(program.values[value])


def type_text(array: Any) -> str:
    """Returns the type of a value with a shape and a dtype as JAX writes it, such as
    `f32[16,8]`."""
    return f"{_short(array.dtype)}[{','.join(map(str, array.shape))}]"


def _short(dtype: Any) -> str:
    return str(dtype).replace("float", "f").replace("uint", "u").replace("int", "i")


def _line(program: Program, equation: Equation) -> EquationLine:
    params = "".join(
        f"{key}={canonical(value)};" for key, value in sorted(equation.jaxpr_eqn.params.items())
    )
    types = [value_type(program, output) for output in equation.outputs]
    digest = f"[{_digest(params)[:6]}]" if params else ""
    text = f"{equation.name}{digest} -> {' '.join(types)}"
    literals = tuple(str(i.value) for i in equation.inputs if isinstance(i, Literal))
    return EquationLine(text, tuple(_operand(program, i) for i in equation.inputs), literals)


def _operand(program: Program, atom: int | Literal) -> str:
    if isinstance(atom, int):
        return f"%{atom}"
    return f"{_short(getattr(atom.value, 'dtype', type(atom.value).__name__))}[]"


def canonical(value: Any) -> str:
    """Returns a text of a value that is equal in every process."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(sorted(f"{k}:{canonical(element)}" for k, element in value.items()))
            + "}"
        )
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(canonical(element) for element in value)) + "}"
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return "(" + ",".join(canonical(element) for element in value) + ")"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{_digest(value.tobytes())}"
    return _ADDRESS.sub("", str(value))


def _array_bytes(array: Any) -> bytes:
    if hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()


def _digest(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:_DIGITS]
