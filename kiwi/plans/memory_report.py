"""`kiwi.memory_report`: the owners of a planned step's memory, as predicted and as compiled.

Both sides are broken down by the same owners, so that they can be subtracted. Owners are the
arguments and results of the function, the results of each unit (with its scratch memory), and the
resharded copies made for a unit. Some memory belongs to no unit. The compiled side adds
fragmentation: memory that XLA's heap holds but cannot use.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kiwi.errors import InvalidArgumentError
from kiwi.messages import topics
from kiwi.plans.record import PlanRecord
from kiwi.plans.summary import table
from kiwi.sizes import format_bytes
from kiwi.xla.read.buffer_assignment import CompiledMemory, LiveBuffer

_MOST_ROWS = 16
"""A table lists this many owners, the largest first, and sums up the others."""

Owner = tuple[str, int]
"""The owner of memory: ("argument", value index), ("result", unit), ("copy", unit), or another kind
with the index -1."""

_OF_UNITS = ("result", "copy")
"""The kinds of owners that belong to units."""


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one owner at one point of time, on one device.

    - `what`: "argument", "result", "recomputed", "copy", "output", "other" or "fragmentation".
    - `name`: the path of an argument, or the opcode of an operator with its phase and unit.
    - `source_line`: the line of the function that computes the memory's value; "" if unknown.
    """

    bytes: int
    what: str
    name: str
    source_line: str


@dataclass(frozen=True)
class MemoryDifference:
    """The predicted and the compiled bytes of one owner, both at the compiled peak.

    - `what`, `name`, `source_line`: as in `MemoryRow`.
    - `unit`: the unit of the plan that owns the bytes, or -1.
    """

    predicted_bytes: int
    compiled_bytes: int
    what: str
    name: str
    source_line: str
    unit: int = -1


@dataclass(frozen=True)
class MemoryReport:
    """The values alive at the peaks, the largest first. Its text consists of tables.

    - `target`: the compiler of the compiled program.
    - `predicted_peak_bytes`, `predicted`: the predicted peak, and the values alive at that time.
    - `compiled_peak_bytes`, `compiled`: the same for the compiled program.
    - `differences`: the owners whose predicted and compiled bytes differ at the compiled peak, the
      largest difference first.
    """

    target: str
    predicted_peak_bytes: int
    predicted: tuple[MemoryRow, ...]
    compiled_peak_bytes: int
    compiled: tuple[MemoryRow, ...]
    differences: tuple[MemoryDifference, ...]

    def __str__(self) -> str:
        return "\n\n".join(
            [
                _rows_text(f"Compiled ({self.target})", self.compiled_peak_bytes, self.compiled),
                _rows_text("Predicted", self.predicted_peak_bytes, self.predicted),
                _differences_text(self.differences),
            ]
        )


def memory_report(plan: PlanRecord) -> MemoryReport:
    """Returns the values alive at the compiled and at the predicted peak, and their differences.

    **Raises:** `InvalidArgumentError` for anything other than a plan, or if the plan has no
    compiled program.
    """
    if not isinstance(plan, PlanRecord):
        raise InvalidArgumentError(
            f"kiwi.memory_report takes a plan, not {type(plan).__name__}.",
            topic=topics.ARGUMENT,
            suggestion="kiwi.load_plan(path).apply(fun).plan(*args) makes a plan of a file.",
        )
    if plan.compiled is None or plan.compiled.memory is None:
        raise InvalidArgumentError(
            "The plan carries no compiled program to report on.",
            topic=topics.NOT_COMPILED,
        )
    describe = _Describer(plan)
    memory = plan.compiled.memory
    arguments = plan.execution.units.graph.program.arguments
    owned = [(_owner(buffer, arguments), buffer.bytes) for buffer in memory.at_peak]
    compiled = _sums([(("fragmentation", -1), memory.fragmentation_bytes), *owned])
    predicted = predicted_by_owner(plan, plan.estimate.peak_unit)
    at_same_time = predicted_by_owner(plan, unit_at_peak(memory))
    return MemoryReport(
        plan.compiled.target,
        plan.estimate.peak_bytes,
        describe.rows(predicted),
        plan.compiled.peak_bytes,
        describe.rows(compiled),
        describe.differences(at_same_time, compiled),
    )


def unit_at_peak(memory: CompiledMemory) -> int:
    """Returns the unit that runs at the compiled peak: the unit of the latest instruction up to the
    peak that belongs to a unit; 0 if there is none."""
    named = [unit for unit in memory.units[: memory.peak_position + 1] if unit >= 0]
    return named[-1] if named else 0


def predicted_by_owner(plan: PlanRecord, unit: int) -> dict[Owner, int]:
    """Returns the predicted memory while a unit runs, in bytes by owner."""
    return _sums(
        ((buffer.kind, buffer.index), buffer.bytes) for buffer in plan.estimate.alive_at(unit)
    )


def _sums(sizes: Iterable[tuple[Owner, int]]) -> dict[Owner, int]:
    """Returns the bytes of each owner that holds any."""
    bytes_of_owner: Counter[Owner] = Counter()
    for owner, size in sizes:
        bytes_of_owner[owner] += size
    return {owner: size for owner, size in bytes_of_owner.items() if size}


def _owner(buffer: LiveBuffer, arguments: Sequence[int]) -> Owner:
    if buffer.argument is not None:
        return "argument", arguments[buffer.argument]
    scope = buffer.scope
    if buffer.kind == "output" or scope is None:
        return ("output" if buffer.kind == "output" else "other"), -1
    return ("copy" if scope.is_resharded else "result"), scope.unit


class _Describer:
    """Makes the rows of owners, with names and source lines."""

    def __init__(self, plan: PlanRecord) -> None:
        self._units = plan.execution.units
        self._recomputed = plan.execution.recomputed
        arguments = self._units.graph.program.arguments
        self._paths = dict(zip(arguments, plan.traced.call.paths, strict=True))

    def rows(self, sizes: Mapping[Owner, int]) -> tuple[MemoryRow, ...]:
        unsorted = (
            MemoryRow(size, *self._words(owner)) for owner, size in self._folded(sizes).items()
        )
        return tuple(sorted(unsorted, key=lambda row: (-row.bytes, row.what, row.name)))

    def differences(
        self, predicted: Mapping[Owner, int], compiled: Mapping[Owner, int]
    ) -> tuple[MemoryDifference, ...]:
        predicted_bytes, compiled_bytes = self._folded(predicted), self._folded(compiled)
        unsorted = [
            MemoryDifference(
                predicted_bytes.get(owner, 0),
                compiled_bytes.get(owner, 0),
                *self._words(owner),
                unit=owner[1] if owner[0] in _OF_UNITS else -1,
            )
            for owner in {**predicted_bytes, **compiled_bytes}
            if predicted_bytes.get(owner, 0) != compiled_bytes.get(owner, 0)
        ]
        key = lambda d: (-abs(d.predicted_bytes - d.compiled_bytes), d.what, d.name)  # noqa: E731
        return tuple(sorted(unsorted, key=key))

    def _folded(self, sizes: Mapping[Owner, int]) -> dict[Owner, int]:
        """Returns bytes by owner. A result that takes over an argument's buffer counts as that
        argument, and a result of the function as output."""
        return _sums((self._canonical(owner), size) for owner, size in sizes.items())

    def _canonical(self, owner: Owner) -> Owner:
        kind, index = owner
        if kind != "result" or len(self._units.units[index].outputs) != 1:
            return owner
        output = self._units.units[index].outputs[0]
        if output in self._units.aliased_results:
            return "argument", self._units.aliased_results[output]
        return ("output", -1) if output in self._units.graph.program.result_values else owner

    def _words(self, owner: Owner) -> tuple[str, str, str]:
        """Returns the kind, the name and the source line of an owner."""
        kind, index = owner
        if kind == "argument":
            return kind, self._paths.get(index, "constant"), ""
        if index < 0:
            return kind, "", ""
        unit = self._units.units[index]
        root = self._units.graph.program.equations[unit.root]
        opcode = self._units.graph.opcode_of(unit.root)
        again = kind == "result" and index in self._recomputed
        name = f"{opcode} ({unit.phase.value}, unit {index})"
        return ("recomputed" if again else kind), name, root.source_line or root.name_stack


def _rows_text(title: str, peak_bytes: int, rows: tuple[MemoryRow, ...]) -> str:
    shown = [
        (format_bytes(row.bytes), row.what, row.name, row.source_line) for row in rows[:_MOST_ROWS]
    ]
    further = rows[_MOST_ROWS:]
    if further:
        shown.append(
            (format_bytes(sum(row.bytes for row in further)), f"{len(further)} more", "", "")
        )
    head = f"{title}: peak {format_bytes(peak_bytes)} per device"
    return f"{head}\n{table(('bytes', 'what', 'name', 'source'), shown)}"


def _differences_text(rows: tuple[MemoryDifference, ...]) -> str:
    if not rows:
        return "Prediction and compiled program hold the same at the compiled peak."
    shown = [
        (
            format_bytes(difference.predicted_bytes),
            format_bytes(difference.compiled_bytes),
            difference.what,
            difference.name,
        )
        for difference in rows[:_MOST_ROWS]
    ]
    head = "Differences at the compiled peak"
    return f"{head}\n{table(('predicted', 'compiled', 'what', 'name'), shown)}"
