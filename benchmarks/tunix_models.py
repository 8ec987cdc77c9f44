"""Models of google-tunix, planned as the library writes them: their layers in a Python loop.

pip install --no-deps google-tunix safetensors qwix
python -m benchmarks.tunix_models --model=qwen3_0p6b       # without a limit, at 70 and at 50 %
python -m benchmarks.tunix_models --model=gemma_2b --lora=16

A model is a constructor of the library's `ModelConfig`: of Qwen3 (`qwen3_30b_a3b` is a mixture of
128 experts in a Python loop), Llama 3 (`llama3p2_1b`) or Gemma (`gemma_2b`, `gemma2_2b`). A step of
AdamW takes 8 sequences of 1024 tokens, on (2, 4) H100s. Parameters and state are donated, and all
arrays are abstract. Qwen3 is in bfloat16. The other models are in float32, the only type that they
support. With `--lora`, qwix adds matrices of that rank to the matrices of all layers, and only the
added ones are trained. Plans are checked on eight virtual CPU devices. Budgets are shares of the
compiled peak of the plan without a limit. Prints a line for each plan, and writes them to
`library_results/tunix.json` and `tunix.md`, in which rows of other models stay.
"""

import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

import kiwi
from benchmarks.hardware import priced_as
from benchmarks.models_of_libraries.planned import figures, line, processor_seconds
from benchmarks.models_of_libraries.tunix import model, training_step
from kiwi.sizes import format_bytes

_MODEL = flags.DEFINE_string("model", "qwen3_0p6b", "A constructor of tunix's ModelConfig.")
_LORA = flags.DEFINE_integer("lora", 0, "The rank of adapters; 0 trains all parameters.")
_LAYERS = flags.DEFINE_integer("layers", 0, "Layers; 0 for the model's own.")
_BATCH = flags.DEFINE_integer("batch", 8, "Sequences.")
_LENGTH = flags.DEFINE_integer("length", 1024, "Tokens of each.")
_SHARES = flags.DEFINE_list("shares", ["0.7", "0.5"], "Budgets.")
_SECONDS = flags.DEFINE_float("time_limit", 600.0, "Seconds for each search.")
_VERIFY = flags.DEFINE_string("verify", "cpu", "As of kiwi.plan; none for no check.")
_EQUAL = flags.DEFINE_bool("equal_layers", True, "As of kiwi.plan.")
_OUT = Path(__file__).parent / "library_results"


def _make() -> Any:
    changes: dict[str, Any] = {"param_dtype": jnp.bfloat16, "dtype": jnp.bfloat16}
    changes |= {"num_layers": _LAYERS.value} if _LAYERS.value else {}
    return model(_MODEL.value, changes, _LORA.value)


def main(_: list[str]) -> None:
    """Plans without a limit and at shares of that plan's peak."""
    jax.config.update("jax_platforms", "cpu")
    step, *state = training_step(_make, _LORA.value, learning_rate=1e-4)
    tokens = jax.ShapeDtypeStruct((_BATCH.value, _LENGTH.value + 1), jnp.int32)
    free: int | None = None
    rows = []
    for share in ("free", *_SHARES.value):
        planned = kiwi.jit(  # Traced anew, so that all of a user's time counts.
            step,
            mesh_shape=(2, 4),
            profile=priced_as("h100-sxm", _VERIFY.value if _VERIFY.value != "none" else None),
            memory_budget="1TiB" if free is None else int(float(share) * free),
            verify=None if _VERIFY.value == "none" else _VERIFY.value,
            donate_argnums=(0, 1),
            time_limit_seconds=_SECONDS.value,
            equal_layers=_EQUAL.value,
        )
        started, cpu_started = time.monotonic(), processor_seconds()
        try:
            plan = planned.plan(*state, tokens)
        except kiwi.errors.KiwiError as error:
            print(f"{share}: {error}", flush=True)
            continue
        durations = time.monotonic() - started, processor_seconds() - cpu_started
        free = free or plan.peak_bytes
        print(
            f"{share}: {line(plan)}, {durations[0]:.0f} s, {durations[1]:.0f} processor s",
            flush=True,
        )
        rows.append(_row(plan, share, durations))
        _write(rows)


def _row(plan: kiwi.Plan, share: str, seconds: tuple[float, float]) -> dict[str, Any]:
    """Returns the row of a plan. `seconds`: seconds by the clock, and of the processor."""
    return {
        "model": _MODEL.value,
        "trained": f"LoRA of rank {_LORA.value}" if _LORA.value else "all",
        "layers": _LAYERS.value or "all",
        "share": share,
        **figures(plan, seconds[1]),
        "seconds": round(seconds[0]),
    }


def _write(rows: list[dict[str, Any]]) -> None:
    """Writes the rows of this model beside those of other models."""
    path = _OUT / "tunix.json"
    known = json.loads(path.read_text()) if path.exists() else []
    key = lambda row: (row["model"], row["trained"], str(row["layers"]))  # noqa: E731
    others = [row for row in known if key(row) != key(rows[0])]
    all_rows = sorted([*others, *rows], key=key)
    path.write_text(json.dumps(all_rows, indent=1) + "\n")
    lines = [
        "# Models of google-tunix on (2, 4) H100s, checked with XLA:CPU",
        "",
        "`python -m benchmarks.tunix_models --model=... [--lora=16] [--layers=...]`; 8 sequences "
        "of 1024 tokens. Budgets are shares of what the plan without a limit takes as compiled. "
        "Processor seconds, and seconds on two cores, are of tracing, planning and checks.",
        "",
        "| model | layers | trained | budget | compiled peak | predicted | step, ms | gap "
        "| compiled | processor s | s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in all_rows:
        budget = "free" if row["share"] == "free" else format_bytes(row["budget_bytes"])
        accuracy = row["predicted_bytes"] / row["peak_bytes"]
        lines.append(
            f"| {row['model']} | {row['layers']} | {row['trained']} | {budget} "
            f"| {format_bytes(row['peak_bytes'])} | {accuracy:.2f} "
            f"| {1e3 * row['step_seconds']:.1f} | {row['gap']:.1%} | {row['compiled']} "
            f"| {row['processor_seconds']} | {row.get('seconds', '')} |"
        )
    (_OUT / "tunix.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
