"""`kiwi.Constraints`: layouts of arguments that the caller pins or forbids, by pytree path.

A path consists of the argument's name and the keys below it, separated by slashes:
`state/params/Dense_0/kernel`. A pattern is a path in which `*` stands for any one part or a piece
of a part, and `**` for any number of parts, including none. A pattern has to match the whole path.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from kiwi.errors import InvalidArgumentError
from kiwi.hlo.host_memory import HOST_MEMORY
from kiwi.messages import topics

_PARTS = re.compile(r"\[['\"]?(.*?)['\"]?\]|([^.\[\]]+)")


@dataclass(frozen=True)
class Constraints:
    """Restrictions on the layouts of arguments.

    - `shardings`: pattern → the sharding of the arguments that the pattern matches. The first
      matching pattern counts. None leaves an argument open, `PartitionSpec.UNCONSTRAINED` leaves
      one dimension open.
    - `forbid_replicated`: patterns of arguments that must not be replicated. Arguments that no mesh
      axis divides are exempt, unless a pattern matches only such arguments.
    - `memory_kinds`: pattern → the memory of the arguments that the pattern matches, "pinned_host"
      or "device". The first matching pattern counts. A result that replaces an argument lies in the
      same memory. The plan copies arguments on the host to the device before they are read
      (`kiwi.calls.host_memory`).

    **Raises:** `InvalidArgumentError` for an invalid sharding or memory kind.
    """

    shardings: Mapping[str, PartitionSpec | NamedSharding | None] = field(default_factory=dict)
    forbid_replicated: Sequence[str] = ()
    memory_kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.forbid_replicated, str):
            object.__setattr__(self, "forbid_replicated", (self.forbid_replicated,))
        for pattern, sharding in self.shardings.items():
            if sharding is not None and not isinstance(sharding, PartitionSpec | NamedSharding):
                raise InvalidArgumentError(
                    f"The sharding {sharding!r} pinned for {pattern!r} is not understood.",
                    topic=topics.NOT_A_SHARDING,
                    suggestion="A PartitionSpec, a NamedSharding, or None to leave it open.",
                )
        for pattern, kind in self.memory_kinds.items():
            if kind not in ("device", HOST_MEMORY):
                raise InvalidArgumentError(
                    f"The memory kind {kind!r} given for {pattern!r} is not known.",
                    topic=topics.MEMORY_KIND,
                    suggestion=f'"device" or "{HOST_MEMORY}".',
                )


def slash_path(path: str) -> str:
    """Returns a path of `Call.paths`, such as `state.params['w']`, with slashes:
    `state/params/w`."""
    return "/".join(quoted or plain for quoted, plain in _PARTS.findall(path))


def matches(pattern: str, path: str) -> bool:
    """Returns whether a pattern matches a path with slashes."""
    return _match(pattern.strip("/").split("/"), path.split("/"))


def _match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_match(pattern[1:], parts[k:]) for k in range(len(parts) + 1))
    if not parts or not fnmatch.fnmatchcase(parts[0], pattern[0]):
        return False
    return _match(pattern[1:], parts[1:])


def matched(pattern: str, paths: Sequence[str], what: str) -> list[int]:
    """Returns the positions of the paths that a pattern matches. `what` names the option in errors.

    **Raises:** `InvalidArgumentError` if the pattern matches no path.
    """
    leaves = [k for k, path in enumerate(paths) if matches(pattern, path)]
    if not leaves:
        shown = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
        raise InvalidArgumentError(
            f"The pattern {pattern!r} of {what} matches no argument.",
            topic=topics.PATTERN,
            cause=f"The arguments are {shown}.",
        )
    return leaves


def _entry(part: str) -> Any:
    """Returns the entry of a `PartitionSpec` for a dimension as on the command line: `x`, `y+z`,
    `-` for a dimension that is not cut, `?` for an open dimension."""
    if part == "?":
        return PartitionSpec.UNCONSTRAINED
    if part in ("-", "None"):
        return None
    names = part.split("+")
    return names[0] if len(names) == 1 else tuple(names)


def _spec(text: str) -> PartitionSpec:
    return PartitionSpec(*(_entry(part.strip()) for part in text.split(",") if part.strip()))


def specs_of_text(text: str) -> tuple[PartitionSpec | None, ...]:
    """Returns the shardings of positional arguments from text as on the command line, such as
    `x,-;;y`. An empty part leaves its argument open."""
    return tuple(_spec(part) if part.strip() else None for part in text.split(";"))


def constraints_of_text(
    pins: Iterable[str], forbidden: Iterable[str], on_host: Iterable[str] = ()
) -> Constraints:
    """Returns the constraints from the command line.

    - `pins`: texts such as `PATTERN=SHARDING`.
    - `forbidden`: patterns of arguments that must not be replicated.
    - `on_host`: patterns of arguments in host memory.

    **Raises:** `InvalidArgumentError` for a pin without "=".
    """
    shardings: dict[str, PartitionSpec | NamedSharding | None] = {}
    for text in pins:
        pattern, sign, spec = text.partition("=")
        if not sign:
            raise InvalidArgumentError(
                f"The pin {text!r} has no sharding.",
                topic=topics.PIN_TEXT,
            )
        shardings[pattern] = _spec(spec)
    return Constraints(shardings, tuple(forbidden), dict.fromkeys(on_host, HOST_MEMORY))
