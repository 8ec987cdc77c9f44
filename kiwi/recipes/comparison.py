"""The comparison of two recipes of one step: their differences, the price of each difference, and
the single change that gains most."""

from dataclasses import dataclass

from kiwi.plans.summary import aligned
from kiwi.recipes.pricing import Priced, price
from kiwi.recipes.recipe import Change
from kiwi.sizes import format_bytes, format_seconds


@dataclass(frozen=True, eq=False)
class Difference:
    """One difference between two recipes.

    - `change`: the change from the first recipe towards the second.
    - `priced`: the first recipe with only this change.
    - `ratio`: the seconds per sample with the change divided by the seconds without it, less 1.
    - `peak_bytes`: the peak of a device with the change, less the peak without it.
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
    """Two recipes of one step, compared. Its text is a table.

    - `own`, `recipe`: the recipes with their prices.
    - `differences`: the changes from `recipe` to `own`, each priced alone. The change that gains
      most comes first.
    """

    own: Priced
    recipe: Priced
    differences: tuple[Difference, ...]

    @property
    def largest_gain(self) -> Difference | None:
        """The single change that fits and gains most; None if no such change gains."""
        gains = (
            difference
            for difference in self.differences
            if difference.priced.fits and difference.ratio < 0
        )
        return next(gains, None)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "recipe", "own", "alone: time", "memory")]
        rows += [
            (
                difference.change.name,
                difference.change.was,
                difference.change.now,
                f"{difference.ratio:+.1%}"
                + ("" if difference.priced.fits else " (over the budget)"),
                _signed(difference.peak_bytes),
            )
            for difference in self.differences
        ]
        ratio = self.own.seconds_per_sample / self.recipe.seconds_per_sample - 1
        rows.append(
            (
                "step",
                *(format_seconds(priced.seconds) for priced in self._both),
                f"{ratio:+.1%}",
                "",
            )
        )
        extra_bytes = self.own.peak_bytes - self.recipe.peak_bytes
        peaks = (format_bytes(priced.peak_bytes) for priced in self._both)
        rows.append(("peak memory", *peaks, "", _signed(extra_bytes)))
        lines = aligned(rows)
        gain = self.largest_gain
        conclusion = (
            "No single change gains." if gain is None else f"The most by one change: {gain}."
        )
        return "\n".join((*lines, "", conclusion))

    @property
    def _both(self) -> tuple[Priced, Priced]:
        return self.recipe, self.own


def compare(own: Priced, recipe: Priced) -> Comparison:
    """Compares two priced recipes of one step.

    Each difference is priced alone, as `recipe` with only that change. Changes interact, so the sum
    of their gains is not the difference between the two recipes. Rules and meshes are compared as
    they are written.

    **Raises:** the errors of `price`.
    """
    differences = []
    for change in recipe.named.changes_to(own.named):
        priced = price(recipe.step, change.changed, **recipe.options)
        ratio = priced.seconds_per_sample / recipe.seconds_per_sample - 1
        extra_bytes = priced.peak_bytes - recipe.peak_bytes
        differences.append(Difference(change, priced, ratio, extra_bytes))
    return Comparison(
        own, recipe, tuple(sorted(differences, key=lambda difference: difference.ratio))
    )


def _figures(ratio: float, peak_bytes: int) -> str:
    return f"{ratio:+.1%}, {_signed(peak_bytes)}"


def _signed(size_bytes: int) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_bytes(abs(size_bytes))}"
