"""The reduction of a step that deviates to the smallest part of the step that still deviates.

1. The kernels that deviate most name equations: the *suspects*.
2. A piece grows around the suspects of one layer, value by value, until it deviates as the step
   does: in the same quantity and direction, by at least `SHARE` of the logarithm. Pieces are small,
   so that each is planned and compiled in seconds. Smaller meshes are tried before larger ones.
3. Equations are dropped, by quarters, eighths and so on down to single equations, as long as the
   remaining piece deviates as the step does and contains a suspect (delta debugging, Zeller and
   Hildebrandt 2002). The results of dropped equations become arguments.
4. Dimensions are divided, the largest first, as long as the piece deviates as the step does.

The search ends after a fixed number of compiled pieces, independent of their time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from kiwi.deviation.kernels import KernelDeviation
from kiwi.deviation.measured import COLLECTIVES, Measure, Measured
from kiwi.deviation.pieces import SCOPES, Piece, sizes_of
from kiwi.deviation.shrinking import shrunk

SHARE = 0.5
"""A piece deviates as the step does if it shows at least this fraction of the step's deviation,
measured as the logarithm of a ratio."""

MOST_TESTS = 80
"""After this many compiled pieces the search ends with the smallest piece found."""

_MOST_SUSPECTS = 3
"""Only the kernels that deviate most supply suspects: at most this many kinds."""

_MOST_SEEDS = 4
"""The search gives up if no piece that grew from this many sets of suspects deviates."""

_DISTANCES = (2, 3, 4, 6)
"""The distances, in values, to which a piece grows around its suspects."""
_MOST_NODES = 160
"""A piece with more equations is given up: it is no smaller than a layer."""

_FIRST_PARTS = 4
"""A piece is first cut into this many parts, and each part is dropped by itself. Halves can hardly
ever be dropped."""

_NEARBY = 200
"""Suspects that are further apart, in equations, do not grow into one piece."""

Report = Callable[[str], None]
"""Takes a line about a piece that was tried."""


@dataclass(frozen=True)
class Reduced:
    """The result of a reduction.

    - `piece`: the smallest piece found.
    - `mesh_shape`: the mesh on which the piece deviates.
    - `measured`: the piece's figures.
    - `tests`: the number of compiled pieces.
    """

    piece: Piece
    mesh_shape: tuple[int, ...]
    measured: Measured
    tests: int


@dataclass
class Reduction:
    """The search for the smallest piece that deviates as a step does.

    - `quantity`, `error`: the quantity in which the step deviates, and its `Measured.error`.
    - `measures`: for each mesh shape, in the order in which they are tried, the function that
      measures a piece.
    - `most_tests`: the largest number of compiled pieces. `tests`: their number so far.
    - `report`: takes a line about each piece that is tried.
    """

    quantity: str
    error: float
    measures: dict[tuple[int, ...], Measure]
    most_tests: int = MOST_TESTS
    report: Report = lambda _: None
    tests: int = 0
    _known: dict[object, Measured | None] = field(default_factory=dict)

    def run(self, whole: Piece, kernels: Sequence[KernelDeviation]) -> Reduced | None:
        """Searches, and returns the smallest piece found; None if no piece that was tried deviates
        as the step does.

        - `whole`: the piece with all equations of the step.
        - `kernels`: the rows of the step's deviation, with the largest deviation first.
        """
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
        """Returns the first piece around the seeds that deviates, and the numbers of its nodes with
        a seed's source line, shape and phase. One of these nodes has to stay in the piece."""
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
        """Returns the numbers of the nodes that remain when no part can be dropped any more."""
        remaining = list(range(len(piece.nodes)))
        length = max(1, len(remaining) // _FIRST_PARTS)
        while self.tests < self.most_tests:
            count = len(remaining)
            for chunk in _from_both_ends(_chunks(remaining, length)):
                candidate = [number for number in remaining if number not in chunk]
                if not candidate or not seeds.intersection(candidate):
                    continue
                if self._deviates(piece.part(candidate), mesh_shape, f"without {len(chunk)}"):
                    remaining = candidate
            if length == 1 and len(remaining) == count:
                break
            length = max(1, length // 2)
        return remaining

    def _divided(self, piece: Piece, mesh_shape: tuple[int, ...]) -> Piece:
        """Returns the piece with its dimensions divided as far as it still deviates."""
        for size in dict.fromkeys(sizes_of(piece)):
            for divisor in (8, 4, 2):
                smaller = shrunk(piece, size, divisor)
                change = f"dimensions of {size} divided by {divisor}"
                if smaller is not None and self._deviates(smaller, mesh_shape, change):
                    piece = smaller
                    break
        return piece

    def _deviates(self, piece: Piece, mesh_shape: tuple[int, ...], what: str) -> bool:
        """Returns whether a piece deviates as the step does; False once all tests are used. `what`
        names the change for the report."""
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
    """Yields the last chunk, the first, the last but one and so on, because the equations at the
    ends are needed least."""
    remaining = list(chunks)
    while remaining:
        yield remaining.pop()
        if remaining:
            yield remaining.pop(0)


def _of_one_device(piece: Piece, devices: int, of_step: int) -> Piece:
    """Returns the piece in the size that the step's part on these devices has. The first dimension
    of the piece's largest argument, as a rule the batch, is divided by the ratio of the step's
    devices (`of_step`) to the piece's devices."""
    divisor = of_step // devices
    largest = max(piece.argument_types, key=lambda type_: prod(type_.shape), default=None)
    if divisor == 1 or largest is None or not largest.shape:
        return piece
    return shrunk(piece, largest.shape[0], divisor) or piece


def suspects_of(
    whole: Piece, kernels: Sequence[KernelDeviation], error: float
) -> list[tuple[int, ...]]:
    """Returns sets of nodes, by their numbers, to grow a piece around, the best first: an equation
    of a kernel that deviates most in the step's direction, with and without equations of other
    kernels nearby. `error`: the step's `Measured.error`."""
    same_direction = [k for k in kernels if k.excess * error > 0 and k.units]
    other_direction = [k for k in kernels if k.excess * error < 0 and k.units]
    places = [
        numbers
        for numbers in (_places(whole, kernel) for kernel in same_direction[:_MOST_SUSPECTS])
        if numbers
    ]
    behind = [
        numbers for numbers in (_places(whole, kernel) for kernel in other_direction[:1]) if numbers
    ]
    suspects: list[tuple[int, ...]] = []
    for start in places:
        seed = start[len(start) // 2]
        other_places = [numbers for numbers in (*places, *behind) if numbers is not start]
        near = [min(numbers, key=lambda number: abs(number - seed)) for numbers in other_places]
        together = (seed, *(n for n in near if abs(n - seed) <= _NEARBY))
        suspects += [tuple(dict.fromkeys(together)), (seed,)]
    return list(dict.fromkeys(suspects))


def _places(whole: Piece, kernel: KernelDeviation) -> list[int]:
    """Returns the nodes of a kernel's units. They have the kernel's source line, and, if any such
    node does, also its shape, its phase and its opcode."""
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
"""An HLO opcode and the name of its JAX primitive are taken for the same operator if they agree in
this many first letters."""

_PHASES = {scope: phase.value for phase, scope in SCOPES.items()}


def _place(whole: Piece, number: int) -> tuple[str, tuple[int, ...], str]:
    """Returns the source line of a node, the shape of its first result, and the scope of its
    phase."""
    node = whole.nodes[number]
    shape = tuple(whole.types[node.writes[0]].shape) if node.writes else ()
    return node.source_line, shape, node.scope


def smaller_meshes(mesh_shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the meshes to try, the smallest first: one device, two devices, all devices along one
    axis, and the mesh itself."""
    whole_mesh = tuple(mesh_shape)
    devices = prod(whole_mesh)
    smaller = [(count,) for count in (1, 2) if count < devices]
    return list(dict.fromkeys([*smaller, (devices,), whole_mesh]))
