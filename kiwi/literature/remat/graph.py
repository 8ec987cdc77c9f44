"""The graph that rematerialisation planners work on: operators, values, and a given order."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from kiwi.errors import InvalidProblemError


@dataclass(frozen=True)
class Value:
    """A tensor that occupies `size_bytes` of memory while it is live. The size may be zero.

    `name` is a label for messages and files, as in `Operator`.
    """

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Operator:
    """A computation that reads values and writes values.

    - `compute_seconds`: the time of one run. Planners only add and compare times, so any unit
      serves.
    - `inputs`, `outputs`: the indices of the values that the operator reads and writes, without
      repetition.
    - `temporary_bytes`: memory beyond inputs and outputs that is held only while the operator runs.
    - `recomputable`: False if the operator must run exactly once, e.g. because it has side effects.
    """

    name: str
    compute_seconds: float
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    temporary_bytes: int = 0
    recomputable: bool = True


@dataclass(frozen=True)
class RematGraph:
    """Operators and values of one step, with the order in which they are given.

    Every operator must be computed at least once. A value that no operator writes is an input of
    the whole graph and is resident throughout. Aliasing and in-place updates are not modelled; a
    view is expressed as a value of zero bytes.

    - `operators`, `values`: other fields refer to them by index.
    - `order`: the given order, which holds each operator once and after the operators it reads
      from.
    - `results`: values that must be live at the end of the step.
    - `backward_of`: the known pairs (forward operator, backward operator).

    Raises `kiwi.errors.InvalidProblemError` if the parts do not fit together.
    """

    operators: tuple[Operator, ...]
    values: tuple[Value, ...]
    order: tuple[int, ...]
    results: frozenset[int] = field(default_factory=frozenset)
    backward_of: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        self._check_indices()
        self._check_amounts()
        self._check_order()

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """For each value, the operator that writes it, or -1 for an input of the graph."""
        producer = [-1] * len(self.values)
        for index, operator in enumerate(self.operators):
            for value in operator.outputs:
                producer[value] = index
        return tuple(producer)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the operators that read it, in ascending order."""
        readers: list[list[int]] = [[] for _ in self.values]
        for index, operator in enumerate(self.operators):
            for value in operator.inputs:
                readers[value].append(index)
        return tuple(tuple(value_readers) for value_readers in readers)

    @cached_property
    def resident_bytes(self) -> int:
        """The memory of the values that no operator writes. They are live throughout."""
        return self.bytes_of(value for value, producer in enumerate(self.producer) if producer < 0)

    @cached_property
    def once_seconds(self) -> float:
        """The time to compute every operator once: a lower bound on the time of any schedule."""
        return self.seconds_of(range(len(self.operators)))

    def bytes_of(self, values: Iterable[int]) -> int:
        """Returns the total size of `values`."""
        return sum(self.values[value].size_bytes for value in values)

    def seconds_of(self, steps: Iterable[int]) -> float:
        """Returns the total time of the operators `steps`."""
        return sum(self.operators[k].compute_seconds for k in steps)

    def predecessors(self, operator: int) -> tuple[int, ...]:
        """Returns the operators that write an input of `operator`, each once."""
        producers = (self.producer[value] for value in self.operators[operator].inputs)
        return tuple(dict.fromkeys(producer for producer in producers if producer >= 0))

    def _check_indices(self) -> None:
        written: set[int] = set()
        for operator in self.operators:
            used = operator.inputs + operator.outputs
            if len(set(used)) < len(used):
                raise InvalidProblemError(f"operator {operator.name!r} repeats a value")
            if any(not 0 <= value < len(self.values) for value in used):
                raise InvalidProblemError(f"operator {operator.name!r} uses an unknown value")
            if written.intersection(operator.outputs):
                raise InvalidProblemError(
                    f"a value of operator {operator.name!r} is written by another operator",
                    suggestion="give each writer its own value",
                )
            written.update(operator.outputs)
        if any(not 0 <= value < len(self.values) for value in self.results):
            raise InvalidProblemError("an unknown value is listed among the results")

    def _check_amounts(self) -> None:
        for operator in self.operators:
            if operator.temporary_bytes < 0 or not operator.compute_seconds >= 0:
                raise InvalidProblemError(f"operator {operator.name!r} has a negative cost")
        for value in self.values:
            if value.size_bytes < 0:
                raise InvalidProblemError(f"value {value.name!r} has a negative size")

    def _check_order(self) -> None:
        if sorted(self.order) != list(range(len(self.operators))):
            raise InvalidProblemError("the order given does not hold every operator exactly once")
        position = {operator: place for place, operator in enumerate(self.order)}
        for reader in range(len(self.operators)):
            for writer in self.predecessors(reader):
                if position[writer] >= position[reader]:
                    raise InvalidProblemError(
                        f"in the given order operator {self.operators[reader].name!r} comes "
                        f"before {self.operators[writer].name!r}, whose result it reads",
                        cause="the order is not topological, or the graph has a cycle",
                    )


def single_output_graph(
    seconds: list[float],
    sizes_bytes: list[int],
    edges: list[tuple[int, int]],
    *,
    names: list[str] | None = None,
    order: tuple[int, ...] | None = None,
    results: frozenset[int] = frozenset(),
    backward_of: tuple[tuple[int, int], ...] = (),
) -> RematGraph:
    """Returns the graph in which operator `k` writes only value `k`; `edges` are (writer, reader).

    Without an `order` the operators are taken in the order of their indices. Raises
    `kiwi.errors.InvalidProblemError` as `RematGraph` does.
    """
    indices = range(len(seconds))
    labels = names if names is not None else [str(index) for index in indices]
    inputs: list[dict[int, None]] = [{} for _ in indices]
    for writer, reader in edges:
        inputs[reader][writer] = None
    operators = tuple(Operator(labels[k], seconds[k], tuple(inputs[k]), (k,)) for k in indices)
    values = tuple(map(Value, labels, sizes_bytes))
    return RematGraph(operators, values, order or tuple(indices), results, backward_of)


def extract(
    graph: RematGraph, operators: Sequence[Operator], counted: Set[int], results: Set[int]
) -> tuple[RematGraph, Mapping[int, int]]:
    """Returns the graph of `operators`, in order and without names, and each value's new number.

    `operators` refer to the values of `graph`. Values are numbered by first occurrence, so that
    parts that look alike are equal. Values that are not in `counted` have size zero. `results` are
    the values of `graph` that must be live at the end.
    """
    number: dict[int, int] = {}
    for operator in operators:
        for value in (*operator.inputs, *operator.outputs):
            number.setdefault(value, len(number))
    local = tuple(
        replace(
            operator,
            name="",
            inputs=tuple(number[value] for value in operator.inputs),
            outputs=tuple(number[value] for value in operator.outputs),
        )
        for operator in operators
    )
    values = tuple(
        Value("", graph.values[value].size_bytes if value in counted else 0) for value in number
    )
    kept = frozenset(number[value] for value in results if value in number)
    return RematGraph(local, values, tuple(range(len(local))), kept), number
