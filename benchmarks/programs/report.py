"""The results of `benchmarks.programs` as text."""

from collections.abc import Mapping
from typing import Any


def report(results: Mapping[str, Any]) -> str:
    """Returns the results as a page of Markdown."""
    lines = ["# Random programs, planned and run on eight virtual CPU devices"]
    for name, summary in results.items():
        lines += ["", f"## Programs {name}", "", *_section(summary)]
    return "\n".join(lines) + "\n"


def _section(found: Mapping[str, Any]) -> list[str]:
    outcomes = ", ".join(f"{kind}: {count}" for kind, count in found["outcomes"].items())
    return [
        f"{found['programs']} programs in {found['seconds']} s; {outcomes}; "
        f"wrong or crashed: {len(found['failures'])}.",
        "",
        *(
            f"{_seed(batch['seed'])}: {batch['programs']} programs, {batch['date']}, commit "
            f"{batch['commit']}, kiwi {batch['kiwi']}, jax {batch['jax']}, "
            f"Python {batch['python']}.  "
            for batch in found["batches"]
        ),
        "",
        f"Of those that ran, {found['recomputing']} recompute and {found['communicating']} "
        f"communicate; {found['operators']} operators were planned. The largest difference of a "
        f"result is {found['largest_difference']:.2f} of the tolerance. Beside its plan, a "
        "program runs under random choices from the same options: "
        f"{found['random_plans']} such plans recompute, "
        f"{found['recomputed_by_random_plans']} operators in all.",
        "",
        "| | drawn |",
        "| --- | ---: |",
        *(f"| {name} | {count} |" for name, count in found["settings"].items()),
        *(f"| {name} | {count} |" for name, count in found["operations"].items()),
        *(f"\n`{failure['recipe']}`" for failure in found["failures"]),
    ]


def _seed(seed: int | None) -> str:
    return "Those that went wrong, again" if seed is None else f"Seed {seed}"
