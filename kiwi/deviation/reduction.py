"""From a step that deviates to the smallest part of it that still does.

1. The kernels that deviate most name equations: the *suspects*.
2. A piece grows around the suspects of one layer, value by value, until it deviates as the step
   does: in the same quantity and direction, by at least `SHARE` of the logarithm. Pieces are small,
   so that each is planned and compiled in seconds. One device is tried before more.
3. Equations are dropped, by quarters, eighths and so on down to single ones, as long as what is
   left deviates so and holds a suspect (delta debugging, Zeller and Hildebrandt 2002). What a
   dropped equation computed is an argument then.
4. Dimensions are divided, the largest first, as long as the difference counts.

The search ends after a number of pieces that were compiled, whatever they took.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from kiwi.deviation.kernels import KernelDeviation
from kiwi.deviation.measured import COLLECTIVES, Measure, Measured
from kiwi.deviation.pieces import SCOPES, Piece, sizes_of
from kiwi.deviation.shrinking import shrunk

SHARE = 0.5
"""The least part of the step's deviation, as the logarithm of a ratio, that a piece must show."""

MOST_TESTS = 80
"""The largest number of pieces that are compiled."""

_MOST_SUSPECTS = 3
"""Kinds of kernels around which a piece grows."""

_MOST_SEEDS = 4
"""From how many sets of suspects a piece grows before the search gives up."""

_DISTANCES = (2, 3, 4, 6)
_MOST_NODES = 160
"""The largest size of a piece. Larger ones are given up: they are no smaller than a layer."""

_FIRST_PARTS = 4
"""Into how many parts a piece is first cut to drop one of them: halves are hardly ever dropped."""

_NEARBY = 200
"""The largest distance, in equations, between the suspects of one piece."""

Report = Callable[[str], None]
"""Takes a line that says what is tried."""


@dataclass(frozen=True)
class Reduced:
    """The result of a reduction.

    - `mesh_shape`: the mesh on which it deviates.
    - `measured`: its figures. `tests`: the number of compiled pieces.
    """

    piece: Piece
    mesh_shape: tuple[int, ...]
    measured: Measured
    tests: int


@dataclass
class Reduction:
    """The search for the smallest piece that deviates as a step does.

    - `quantity`, `error`: that of the step, see `Measured.error`.
    - `measures`: by mesh shape, how a piece is measured, in the order in which they are tried.
    """

    quantity: str
    error: float
    measures: dict[tuple[int, ...], Measure]
    most_tests: int = MOST_TESTS
    report: Report = lambda _: None
    tests: int = 0
    _known: dict[object, Measured | None] = field(default_factory=dict)

    def run(self, whole: Piece, kernels: Sequence[KernelDeviation]) -> Reduced | None:
        """The smallest piece found; None if none of those that were tried deviates so."""
        suspects = suspects_of(whole, kernels, self.error)
        for seeds in suspects[:_MOST_SEEDS]:
            for mesh_shape in self.measures:
                if self.quantity == COLLECTIVES and prod(mesh_shape) == 1:
                    continue
                grown = self._grown(whole, seeds, mesh_shape)
                if grown is not None:
                    return self._minimised(*grown, mesh_shape)
        return None

    def _grown(
        self, whole: Piece, seeds: Sequence[int], mesh_shape: tuple[int, ...]
    ) -> tuple[Piece, frozenset[int]] | None:
        """The first piece around the seeds that deviates; and which of its nodes are of the seeds'
        lines, shapes and phases, one of which has to stay."""
        before = -1
        for distance in _DISTANCES:
            numbers = sorted(whole.neighbours(seeds, distance))
            if len(numbers) == before or len(numbers) > _MOST_NODES:
                return None
            before = len(numbers)
            piece = _of_one_device(whole.part(numbers), prod(mesh_shape), self._devices)
            if self._deviates(piece, mesh_shape, f"distance {distance}"):
                places = {_place(whole, seed) for seed in seeds}
                return piece, frozenset(
                    k for k, number in enumerate(numbers) if _place(whole, number) in places
                )
        return None

    @property
    def _devices(self) -> int:
        return max(prod(mesh_shape) for mesh_shape in self.measures)

    def _minimised(
        self, piece: Piece, seeds: frozenset[int], mesh_shape: tuple[int, ...]
    ) -> Reduced:
        numbers = self._dropped(piece, seeds, mesh_shape)
        piece = self._divided(piece.part(numbers), mesh_shape)
        measured = self._measured(piece, mesh_shape)
        assert measured is not None
        return Reduced(piece, mesh_shape, measured, self.tests)

    def _dropped(
        self, piece: Piece, seeds: frozenset[int], mesh_shape: tuple[int, ...]
    ) -> list[int]:
        """The numbers of nodes none of which can be left out."""
        kept = list(range(len(piece.nodes)))
        length = max(1, len(kept) // _FIRST_PARTS)
        while self.tests < self.most_tests:
            count = len(kept)
            for chunk in _from_both_ends(_chunks(kept, length)):
                rest = [number for number in kept if number not in chunk]
                if not rest or not seeds.intersection(rest):
                    continue
                if self._deviates(piece.part(rest), mesh_shape, f"without {len(chunk)}"):
                    kept = rest
            if length == 1 and len(kept) == count:
                break
            length = max(1, length // 2)
        return kept

    def _divided(self, piece: Piece, mesh_shape: tuple[int, ...]) -> Piece:
        """The piece with dimensions as small as they can be."""
        for size in dict.fromkeys(sizes_of(piece)):
            for divisor in (8, 4, 2):
                smaller = shrunk(piece, size, divisor)
                what = f"dimensions of {size} divided by {divisor}"
                if smaller is not None and self._deviates(smaller, mesh_shape, what):
                    piece = smaller
                    break
        return piece

    def _deviates(self, piece: Piece, mesh_shape: tuple[int, ...], what: str) -> bool:
        """Whether a piece deviates as the step does; not any more once all tests are used."""
        if self.tests >= self.most_tests or not piece.nodes or not piece.arguments:
            return False
        measured = self._measured(piece, mesh_shape)
        error = 0.0 if measured is None else measured.error(self.quantity)
        is_same = error * self.error > 0 and abs(error) >= SHARE * abs(self.error)
        figure = "no plan" if measured is None else f"{error:+.2f}"
        mesh = "x".join(map(str, mesh_shape))
        self.report(
            f"{self.tests}: {what}, {len(piece.nodes)} equations on {mesh}: {figure}"
            f"{', kept' if is_same else ''}"
        )
        return is_same

    def _measured(self, piece: Piece, mesh_shape: tuple[int, ...]) -> Measured | None:
        key = (
            mesh_shape,
            tuple(map(id, piece.nodes)),
            tuple(type_.shape for type_ in piece.argument_types),
        )
        if key not in self._known:
            self.tests += 1
            self._known[key] = self.measures[mesh_shape](piece.function, piece.argument_types)
        return self._known[key]


def _chunks(numbers: list[int], length: int) -> list[frozenset[int]]:
    starts = range(0, len(numbers), length)
    return [frozenset(numbers[start : start + length]) for start in starts]


def _from_both_ends(chunks: list[frozenset[int]]) -> Iterator[frozenset[int]]:
    """The last, the first, the last but one and so on: what stands at the ends is needed least."""
    left = list(chunks)
    while left:
        yield left.pop()
        if left:
            yield left.pop(0)


def _of_one_device(piece: Piece, devices: int, of_step: int) -> Piece:
    """The piece in the size of one device's part of the step. The first dimension of its largest
    argument, as a rule the batch, is divided by the ratio of the step's devices to the piece's."""
    divisor = of_step // devices
    largest = max(piece.argument_types, key=lambda t: prod(t.shape), default=None)
    if divisor == 1 or largest is None or not largest.shape:
        return piece
    return shrunk(piece, largest.shape[0], divisor) or piece


def suspects_of(
    whole: Piece, kernels: Sequence[KernelDeviation], error: float
) -> list[tuple[int, ...]]:
    """Numbers of nodes to grow a piece around, the best first: equations of the kernels that
    deviate most in the step's direction, each with others of the same layer."""
    same = [k for k in kernels if k.excess * error > 0 and k.units]
    other = [k for k in kernels if k.excess * error < 0 and k.units]
    places = [p for p in (_places(whole, kernel) for kernel in same[:_MOST_SUSPECTS]) if p]
    behind = [p for p in (_places(whole, kernel) for kernel in other[:1]) if p]
    suspects: list[tuple[int, ...]] = []
    for first in places:
        seed = first[len(first) // 2]
        others = [p for p in (*places, *behind) if p is not first]
        near = [min(p, key=lambda number: abs(number - seed)) for p in others]
        together = (seed, *(n for n in near if abs(n - seed) <= _NEARBY))
        suspects += [tuple(dict.fromkeys(together)), (seed,)]
    return list(dict.fromkeys(suspects))


def _places(whole: Piece, kernel: KernelDeviation) -> list[int]:
    """The nodes of a kernel's units: of its source line, and of its shape, phase and opcode as far
    as there are such."""
    places = [k for k, node in enumerate(whole.nodes) if node.source_line == kernel.source_line]
    wanted: tuple[Callable[[int], bool], ...] = (
        lambda k: _place(whole, k)[1] == kernel.shape,
        lambda k: kernel.name.endswith(f"({_PHASES[whole.nodes[k].scope]})"),
        lambda k: kernel.name.startswith(whole.nodes[k].name[:_ALIKE]),
    )
    for is_wanted in wanted:
        places = [k for k in places if is_wanted(k)] or places
    return places


_ALIKE = 3
"""So many letters are the same in an opcode of HLO and the name of its primitive in JAX."""

_PHASES = {scope: phase.value for phase, scope in SCOPES.items()}


def _place(whole: Piece, number: int) -> tuple[str, tuple[int, ...], str]:
    """The source line of a node, the shape of its first result, and its phase's scope."""
    node = whole.nodes[number]
    shape = tuple(whole.types[node.writes[0]].shape) if node.writes else ()
    return node.source_line, shape, node.scope


def smaller_meshes(mesh_shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The meshes to try, the smallest first: one device, two, the mesh itself."""
    own = tuple(mesh_shape)
    devices = prod(own)
    smaller = [(count,) for count in (1, 2) if count < devices]
    return list(dict.fromkeys([*smaller, (devices,), own]))
