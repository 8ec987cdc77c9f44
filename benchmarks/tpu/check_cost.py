"""The seconds of a check by XLA:TPU, as a share of the compilation that it waits for.

The check is everything that a plan waits for after emission: the step is exported, and a process
reads it, lowers it, compiles it up to the buffer assignment, and reads XLA's output. The process
starts in advance, while Kiwi plans. The compilation is the time that this process measures for the
same step.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from benchmarks.fidelity.models import MODELS
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import of_module
from kiwi.mesh import DeviceMesh
from kiwi.xla.compilers import compile_for, prepared

MESH_SHAPE, PROFILE, TOPOLOGY = (2, 4), "v5e", "2x4"
REPEATED = 3
WARM_UP_SECONDS = 8.0
"""The time that a process takes to import jax and Kiwi, while a plan is made."""


def measure(book: Book, names: Iterable[str], seconds: float) -> None:
    """Measures the missing rows."""
    for name in names:
        book.row(name, lambda name=name: _row(name, seconds))


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each model, and the median."""
    yield "| model | check s | compilation s | check / compilation |"
    yield "| --- | ---: | ---: | ---: |"
    ratios = [row["check_seconds"] / row["compile_seconds"] for row in rows.values()]
    for (name, row), ratio in zip(rows.items(), ratios, strict=True):
        seconds = (f"{row[key]:.2f}" for key in ("check_seconds", "compile_seconds"))
        yield f"| {name} | {' | '.join(seconds)} | {ratio:.2f} |"
    if ratios:
        yield f"| median | | | {median(ratios):.2f} |"


def _row(name: str, seconds: float) -> Row:
    model = MODELS[name]
    options = {"mesh_shape": MESH_SHAPE, "profile": PROFILE, "topology": TOPOLOGY}
    step = of_module(model.module, model.config)
    plan = step.plan(verify=None, time_limit_seconds=seconds, **options)
    mesh = DeviceMesh.create(MESH_SHAPE, PROFILE, topology=TOPOLOGY)
    pairs: list[tuple[float, float]] = []
    for _ in range(REPEATED):
        with prepared("tpu", mesh):
            time.sleep(WARM_UP_SECONDS)
            started = time.monotonic()
            compiled = compile_for("tpu", plan.step)
            pairs.append((time.monotonic() - started, compiled.compile_seconds))
    check, compilation = min(pairs)
    return {"check_seconds": round(check, 3), "compile_seconds": round(compilation, 3)}
