"""MaxText's recipes on 256 v5e, priced and compiled, beside Kiwi's residencies.

    python -m benchmarks.recipes [case …]

Needs the package maxtext (docs/guides/maxtext.md). The results are written after each row.
"""

import datetime
import json
import resource
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import logging

from benchmarks.provenance import commit
from benchmarks.recipes.train_compile import memory_of, peak_bytes
from kiwi.errors import KiwiError
from kiwi.frameworks.maxtext import MaxText
from kiwi.loading import use_cpu_devices
from kiwi.recipes import Priced, best, price
from kiwi.xla.tpu.compiler import TPU

RESULTS = Path(__file__).parent / "results.json"

LLAMA_2 = {"model_name": "llama2-7b", "per_device_batch_size": 4, "max_target_length": 2048}
LLAMA_3 = {"model_name": "llama3.1-8b", "per_device_batch_size": 2, "max_target_length": 8192}
CASES: dict[str, dict[str, Any]] = {
    "llama2-7b dot_product": LLAMA_2 | {"attention": "dot_product"},
    "llama2-7b flash": LLAMA_2 | {"attention": "flash"},
    "llama2-7b flash, 4 microbatches": LLAMA_2
    | {"attention": "flash", "per_device_batch_size": 1, "gradient_accumulation_steps": 4},
    "llama3.1-8b flash": LLAMA_3 | {"attention": "flash"},
}

POLICIES = ("full", "save_qkv_proj", "save_out_proj", "save_dot_except_mlp", "minimal")
"""MaxText's policies. The recipe of a case is the policy whose compiled program is fastest."""

TOPOLOGY, MAXTEXTS_NAME = "16x16", "v5e-256"


def main(asked: list[str]) -> None:
    """Writes the rows of the named cases, or of all."""
    use_cpu_devices(256)
    logging.set_verbosity(logging.ERROR)
    cases = json.loads(RESULTS.read_text()).get("cases", {}) if RESULTS.exists() else {}
    for name in asked or CASES:
        rows = cases[name] = []
        for row in rows_of(CASES[name]):
            rows.append(row)
            print(json.dumps(row), flush=True)
            RESULTS.write_text(json.dumps(told() | {"cases": cases}, indent=1) + "\n")


def told() -> dict[str, Any]:
    """Returns the commit, the date and the versions that the results were made with."""
    packages = ("jax", "libtpu", "maxtext", "flax")
    return {
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "versions": {name: metadata.version(name) for name in packages},
    }


def rows_of(settings: dict[str, Any]) -> Any:
    """Yields one row for each policy of MaxText, one for Kiwi's residencies at the memory of the
    fastest policy, and one for Kiwi's residencies at all memory."""
    priced_policies: list[tuple[float, MaxText, Priced]] = []
    for policy in POLICIES:
        maxtext = MaxText("base.yml", settings | {"remat_policy": policy}, "v5e", TOPOLOGY)
        started = cpu_seconds()
        priced = price(maxtext, maxtext.recipe, verify="tpu")
        yield {"what": policy, "cpu_seconds": cpu_seconds() - started} | row(priced)
        if priced.plan.compiled is not None:
            priced_policies.append((priced.plan.compiled.step_seconds or 0.0, maxtext, priced))
    _, maxtext, fastest = min(priced_policies, key=lambda candidate: candidate[0])
    for name, budget in (("own, at its memory", fastest.peak_bytes), ("own, at all memory", None)):
        started = cpu_seconds()
        try:
            planned = best(
                maxtext, maxtext.recipe, **({"memory_budget": budget} if budget else CHECKED)
            )
            planned = price(maxtext, planned.named, verify="tpu")
        except KiwiError as error:
            yield {"what": name, "refused": str(error)}
            continue
        took = {"what": name, "cpu_seconds": cpu_seconds() - started}
        yield (
            took
            | {"beside": maxtext.overrides["remat_policy"]}
            | row(planned)
            | compiled_there(maxtext, planned)
        )


CHECKED = {"verify": "tpu"}
"""Options of the plan with all memory: its compiled program must fit."""


def compiled_there(made: MaxText, own: Priced) -> dict[str, Any]:
    """Returns the peaks of the overrides as MaxText's `train_compile` compiles them: with its own
    options, and with the options of Kiwi's program."""
    compiled = own.plan.compiled
    options_by_name = {"its_options": {}}
    if compiled is not None:
        compilers = (TPU, *TPU.overlapping)
        options_by_name["kiwis_options"] = dict(compilers[compiled.overlap].check_options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overrides.yml"
        made.write_overrides(own.named, path)
        sizes_by_name = {
            way: memory_of(path, MAXTEXTS_NAME, options=options)
            for way, options in options_by_name.items()
        }
    return {f"train_compile_bytes_{way}": peak_bytes(sizes) for way, sizes in sizes_by_name.items()}


def row(priced: Priced) -> dict[str, Any]:
    """Returns the figures of a priced recipe."""
    compiled = priced.plan.compiled
    return {
        "seconds": priced.seconds,
        "peak_bytes": priced.peak_bytes,
        "fits": priced.fits,
        "compiled_seconds": compiled and compiled.step_seconds,
        "compiled_peak_bytes": compiled and compiled.peak_bytes,
        "residencies": dict(priced.named.residencies or {}),
        "notes": [str(note) for note in priced.plan.notes if "policies" in str(note)],
    }


def cpu_seconds() -> float:
    """Returns the processor seconds of this process and of ended child processes."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main(sys.argv[1:])
