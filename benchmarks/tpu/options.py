"""The options of XLA:TPU with which a plan keeps its memory, and its collectives overlap.

One plan is compiled under each set of options up to its buffer assignment, which follows
scheduling. A collective overlaps if other instructions are between its start and its end, or if it
is part of an asynchronous collective fusion, which runs it beside a matmul.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import kiwi
from benchmarks.fidelity.models import MODELS
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import of_module
from kiwi.errors import CompileCheckError
from kiwi.mesh import DeviceMesh
from kiwi.xla.compile.dump import dump_options, dumped
from kiwi.xla.compile.worker import begun_elsewhere
from kiwi.xla.read.collectives import COLLECTIVE_KINDS, CollectiveReader
from kiwi.xla.read.compiled_program import read_dump
from kiwi.xla.read.hlo_text import parse_module
from kiwi.xla.step import ExportedStep, Step
from kiwi.xla.tpu.compiler import TPU, TPU_CHECK_OPTIONS, devices_of

MESH_SHAPE, PROFILE, TOPOLOGY = (2, 4), "v5e", "2x4"

_WINDOWED = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
_ASYNC = "xla_tpu_enable_async_collective_fusion"
_VMEM = "xla_msa_enable"
_REMAT = "xla_jf_rematerialization_percent_shared_memory_limit"
_LATENCY = "xla_tpu_enable_latency_hiding_scheduler"


def _without(*names: str, **more: Any) -> dict[str, Any]:
    kept = {key: value for key, value in TPU_CHECK_OPTIONS.items() if key not in names}
    return {**kept, **more}


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "check": TPU_CHECK_OPTIONS,
    "VMEM": _without(_VMEM),
    "async fusion": _without(_ASYNC),
    "windowed einsum": _without(_WINDOWED),
    "own remat": _without(_REMAT),
    "latency hiding off": _without(**{_LATENCY: False}),
    "async fusion, VMEM": _without(_ASYNC, _VMEM),
    "XLA's default": {},
}
"""Sets of options, named by their changes of the check's options. `_without` takes XLA's default of
an option."""

SHARES = (None, 60)
"""Budgets, in % of the free compiled peak. None is the free plan."""


def measure(book: Book, names: Iterable[str], seconds: float) -> None:
    """Measures the missing rows. A plan is made once for all options."""
    for name in names:
        peak_bytes: int | None = None
        for share in SHARES:
            keys = {f"{name} {share or 'free'} / {variant}": variant for variant in VARIANTS}
            missing = [key for key in keys if key not in book.rows]
            if share is None and not missing:
                peak_bytes = book.rows[next(iter(keys))]["peak_bytes"]
            if not missing:
                continue
            budget = None if share is None else share * int(peak_bytes or 0) // 100
            plan = _plan(name, budget, seconds)
            for key in missing:
                variant = VARIANTS[keys[key]]
                book.row(key, lambda plan=plan, variant=variant: _row(plan, variant))
            if share is None:
                peak_bytes = plan.peak_bytes


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each plan and set of options."""
    yield (
        "| plan | options | predicted MiB | HBM MiB | VMEM MiB | collectives | of MiB | overlap "
        "| of MiB | permutes | remat |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for key, row in rows.items():
        plan, _, variant = key.partition(" / ")
        if "error" in row:
            yield f"| {plan} | {variant} | {row['error']} |"
            continue
        keys = ("predicted_peak_bytes", "peak_bytes", "vmem_bytes")
        sizes = [f"{row[name] / 2**20:.0f}" for name in keys]
        for count, size in (
            ("collectives", "collective_bytes"),
            ("overlapping", "overlapping_bytes"),
        ):
            sizes += [str(row[count]), f"{row[size] / 2**20:.0f}"]
        counts = [str(row[name]) for name in ("permutes", "remats")]
        yield f"| {' | '.join([plan, variant, *sizes, *counts])} |"


def _plan(name: str, budget: int | None, seconds: float) -> kiwi.Plan:
    model = MODELS[name]
    return of_module(model.module, model.config).plan(
        mesh_shape=MESH_SHAPE,
        profile=PROFILE,
        topology=TOPOLOGY,
        memory_budget=budget,
        verify="tpu",
        time_limit_seconds=seconds,
    )


def _row(plan: kiwi.Plan, variant: Mapping[str, Any]) -> Row:
    plan_figures = {"predicted_peak_bytes": plan.estimate.peak_bytes, "options": dict(variant)}
    try:
        return plan_figures | figures(plan.step, variant)
    except CompileCheckError as error:
        return plan_figures | {"error": type(error).__name__, "cause": error.cause}


def figures(step: Step, variant: Mapping[str, Any]) -> Row:
    """Returns the figures of a step under compiler options. Raises as `Compiler.compile`."""
    return begun_elsewhere(figures_there, step, "tpu", {"compiler_options": dict(variant)})()


def figures_there(step: ExportedStep, options: Mapping[str, Any], folder: str) -> Row:
    """Returns the figures from the process with the compiler."""
    compiler_options = {**options["compiler_options"], **dump_options(folder)}
    dump = dumped(lambda: step.compile(devices_of(step.mesh), compiler_options), folder, TPU.dump)
    program = read_dump(dump, step.mesh, TPU.name, 0.0, TPU.other_memories)
    return {
        "peak_bytes": program.peak_bytes,
        "vmem_bytes": program.bytes_elsewhere.get("VMEM", 0),
        "remats": program.rematerialized,
        "kinds": {kind: use.count for kind, use in program.collectives.items()},
        **overlap(dump.text, step.mesh),
    }


_CHANNEL = re.compile(r"\bchannel_id=(\d+)")


def overlap(text: str, mesh: DeviceMesh) -> dict[str, int]:
    """Returns the number and bytes of a scheduled module's collectives, counted by channels; of
    those that start before they are waited for; and the number of permutations."""
    kinds: dict[str, str] = {}
    bytes_of: dict[str, int] = {}
    computations: defaultdict[str, set[str]] = defaultdict(set)
    started, read = set[str](), CollectiveReader(mesh.shape, mesh.axis_names)
    for name, computation in parse_module(text).computations.items():
        for instruction in computation.instructions:
            kind = instruction.opcode.removesuffix("-start")
            channel = _CHANNEL.search(instruction.attributes)
            if kind not in COLLECTIVE_KINDS or channel is None:
                continue
            number, use = channel[1], read(instruction, name)
            kinds[number] = kind
            bytes_of[number] = 0 if use is None else use.bytes
            computations[number].add(name)
            if instruction.opcode != kind or len(computations[number]) > 1:
                started.add(number)
    return {
        "collectives": len(kinds),
        "collective_bytes": sum(bytes_of.values()),
        "overlapping": len(started),
        "overlapping_bytes": sum(bytes_of[number] for number in started),
        "permutes": sum(kind == "collective-permute" for kind in kinds.values()),
    }
