"""Plans the missing rows; see `benchmarks.kernels_at_size`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.kernels_at_size.scores import compiled
from benchmarks.published.models import Decoder, abstract_state, training_step
from benchmarks.tpu.book import Book, Row
from kiwi.errors import KiwiError

_OUT = flags.DEFINE_string("out", "benchmarks/kernels_at_size/results/rows.json", "Rows.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of names of rows that are planned again.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of plans.")

SEQUENCE = 8192

LLAMA = Decoder(
    layers=32,
    width=4096,
    heads=32,
    kv_heads=8,
    head_width=128,
    hidden=14336,
    vocabulary=128_256,
    mlp="swiglu",
    kept=None,
    on_tpus=True,
    weights="bfloat16",
    tiles=4,
)
"""Llama-3 8B with weights in bfloat16, moments in float32, and logits computed in four parts."""


@dataclass(frozen=True)
class Setting:
    """The devices, the compiler that checks the plan, and the number of sequences of a step."""

    profile: str
    options: Mapping[str, Any]
    compiler: str
    batch: int

    @property
    def decoder(self) -> Decoder:
        """The model with the kernel for these devices."""
        return replace(LLAMA, on_tpus=self.compiler == "tpu")


SETTINGS: Mapping[str, Setting] = {
    "splash attention on 16 v5e": Setting(
        "v5e", {"mesh_shape": (4, 4), "topology": "4x4"}, "tpu", 16
    ),
    "cuDNN attention on 8 h100-sxm": Setting("h100-sxm", {"mesh_shape": (8,)}, "cuda", 16),
}


def main(_: list[str]) -> None:
    """Plans the missing rows, and writes the table."""
    jax.config.update("jax_platforms", "cpu")
    book = Book(Path(_OUT.value), tuple(_REDO.value), module="benchmarks.kernels_at_size")
    for name, setting in SETTINGS.items():
        book.row(name, lambda setting=setting: _row(setting))
    title = f"Llama-3 8B, sequences of {SEQUENCE} tokens, attention as one kernel"
    book.write_table(title, _lines(book.rows))


def _row(setting: Setting) -> Row:
    """Returns the figures of the plan as checked by its compiler. If the compiler cannot compile
    the kernel, the row holds the refusal and the figures of the plan without a check, lowered."""
    try:
        plan, refusal = _plan(setting, setting.compiler), None
    except KiwiError as error:
        plan, refusal = _plan(setting, None), str(error)
    compiled_figures = {} if refusal else compiled(plan.step, setting.compiler, SEQUENCE)
    return {
        "refusal": refusal,
        "lowered_bytes": len(plan.step.exported(setting.compiler)),
        "sequences": setting.batch,
        "budget_bytes": plan.memory_budget_bytes,
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "compiled_peak_bytes": None if plan.compiled is None else plan.compiled.peak_bytes,
        "fits": plan.fits,
        "step_seconds": plan.estimate.step_seconds,
        "gap": plan.solve_result.gap,
        "recomputed": len(plan.execution.recomputed),
        "planned_kernels": sum(d.opcode == "custom_call" for d in plan.decisions),
        "programs": len(plan.rounds),
        "planning_seconds": round(plan.planning_seconds, 1),
        **compiled_figures,
    }


def _plan(setting: Setting, verify: str | None) -> kiwi.Plan:
    return kiwi.plan(
        training_step(setting.decoder, None),
        abstract_state(setting.decoder),
        jax.ShapeDtypeStruct((setting.batch, SEQUENCE), "int32"),
        donate_argnums=0,
        profile=setting.profile,
        verify=verify,
        effort=_EFFORT.value,
        **setting.options,
    )


def _lines(rows: Mapping[str, Row]) -> Iterator[str]:
    yield (
        "| | budget GiB | predicted GiB | compiled GiB | step s | gap | kernels in the program "
        "| arrays like scores |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, row in rows.items():
        peaks = (row["budget_bytes"], row["predicted_peak_bytes"], row["compiled_peak_bytes"])
        cells = [name, *("" if size is None else f"{size / 2**30:.2f}" for size in peaks)]
        cells += [f"{row['step_seconds']:.2f}", f"{row['gap']:.1%}"]
        known = "kernels" in row
        cells += [str(row["kernels"]) if known else "", _count(row) if known else ""]
        yield f"| {' | '.join(cells)} |"
    for name, row in rows.items():
        if row["refusal"]:
            yield ""
            yield f"{name}, not compiled: {row['refusal'].splitlines()[0]}"


def _count(row: Row) -> str:
    return str(len(row["arrays_like_scores"]))


if __name__ == "__main__":
    app.run(main)
