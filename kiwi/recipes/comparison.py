"""Two recipes of one step: what differs, by how much, and which single change gains most."""

from dataclasses import dataclass

from kiwi.plans.summary import aligned
from kiwi.recipes.pricing import Priced, price
from kiwi.recipes.recipe import Change
from kiwi.sizes import format_bytes, format_seconds


@dataclass(frozen=True, eq=False)
class Difference:
    """One difference between two recipes.

    - `change`: what leads from the one to the other. `priced`: the first recipe with this change
      alone.
    - `ratio`: seconds per sample with the change over those without, less 1. `peak_bytes`: bytes of
      a device with the change, less those without.
    """

    change: Change
    priced: Priced
    ratio: float
    peak_bytes: int

    def __str__(self) -> str:
        refused = "" if self.priced.fits else ", over the budget"
        return f"{self.change.imperative}: {_figures(self.ratio, self.peak_bytes)}{refused}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two recipes of one step. Print it to read it.

    - `own`, `recipe`: the recipes with their prices.
    - `differences`: the changes from `recipe` to `own`, each alone, those that gain most first.
    """

    own: Priced
    recipe: Priced
    differences: tuple[Difference, ...]

    @property
    def largest_gain(self) -> Difference | None:
        """The single change that fits and gains most; None if none gains."""
        gains = (d for d in self.differences if d.priced.fits and d.ratio < 0)
        return next(gains, None)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "recipe", "own", "alone: time", "memory")]
        rows += [
            (
                d.change.name,
                d.change.was,
                d.change.now,
                f"{d.ratio:+.1%}" + ("" if d.priced.fits else " (over the budget)"),
                _signed(d.peak_bytes),
            )
            for d in self.differences
        ]
        ratio = self.own.seconds_per_sample / self.recipe.seconds_per_sample - 1
        rows.append(("step", *(format_seconds(p.seconds) for p in self._both), f"{ratio:+.1%}", ""))
        more = self.own.peak_bytes - self.recipe.peak_bytes
        peaks = (format_bytes(p.peak_bytes) for p in self._both)
        rows.append(("peak memory", *peaks, "", _signed(more)))
        lines = aligned(rows)
        gain = self.largest_gain
        said = "No single change gains." if gain is None else f"The most by one change: {gain}."
        return "\n".join((*lines, "", said))

    @property
    def _both(self) -> tuple[Priced, Priced]:
        return self.recipe, self.own


def compare(own: Priced, recipe: Priced) -> Comparison:
    """Compares two priced recipes of one step.

    Each difference is priced alone: `recipe` with that change. Changes interact, so their sum is
    not the difference of the two recipes. Rules and meshes are compared as they are written.

    **Raises:** the errors of `price`.
    """
    found = []
    for change in recipe.named.changes_to(own.named):
        priced = price(recipe.step, change.changed, **recipe.options)
        ratio = priced.seconds_per_sample / recipe.seconds_per_sample - 1
        more = priced.peak_bytes - recipe.peak_bytes
        found.append(Difference(change, priced, ratio, more))
    return Comparison(own, recipe, tuple(sorted(found, key=lambda d: d.ratio)))


def _figures(ratio: float, peak_bytes: int) -> str:
    return f"{ratio:+.1%}, {_signed(peak_bytes)}"


def _signed(size_bytes: int) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(abs(size_bytes))}"
