"""Plans one row of the benchmark again, and prints the composition of its memory.

python -m benchmarks.fidelity.explain --row="gpt 2x4 budget-60 cpu"
"""

import json
from pathlib import Path

import jax
from absl import app, flags

import kiwi
from benchmarks.fidelity.measure import Case, make_plan
from benchmarks.fidelity.summary import Key
from examples.baselines import UNLIMITED
from kiwi.errors import BudgetNotMetError

_ROW = flags.DEFINE_string("row", None, "Key of a planned row.", required=True)
_RESULTS = flags.DEFINE_string(
    "results", "benchmarks/fidelity/results/fidelity.json", "Where the row's budget is taken from."
)


def main(_: list[str]) -> None:
    """Prints `kiwi.memory_report` of the row's plan, or of the nearest plan if none fits."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    results = json.loads(Path(_RESULTS.value).read_text())
    key, row = Key.parse(_ROW.value), results["rows"][_ROW.value]
    profile = results["environment"]["profile"]
    shape = tuple(map(int, key.mesh.split("x")))
    case = Case(key.model, shape, key.target, profile)
    try:
        plan = make_plan(case, row.get("budget_bytes") or UNLIMITED)
    except BudgetNotMetError as error:
        plan = error.plan
    print(plan, kiwi.memory_report(plan), sep="\n\n")


if __name__ == "__main__":
    app.run(main)
