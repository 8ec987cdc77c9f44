"""Takes the pictures of the report for `docs/start/reading_a_report.md` in a headless Chromium.

    python -m benchmarks.report_pictures

Plans four layers of GPT-3 13B on eight H100s with 12 GiB each, checked by the installed compiler,
and adds the sweep of `benchmarks/sweep_results`. `--data FILE.json` stores the data of the report,
or reads them if the file exists.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax

import kiwi
from examples import gpt
from kiwi.plans.document import document
from kiwi.plans.report_data import report_data
from kiwi.report import render
from tests.helpers.browser import WHY_NOT, Browser, find_chromium

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SWEEP = ROOT / "benchmarks" / "sweep_results" / "gpt_13b_4l.json"
WIDE, NARROW = (1280, 800), (390, 844)

_TO = "document.getElementById({!r}).scrollIntoView(); 0"
_OPENED = "document.querySelector('#decisions tbody tr.item').click(); "

PICTURES = {
    "report_light.png": ("light", WIDE, "0"),
    "report_dark.png": ("dark", WIDE, "0"),
    "report_phone.png": ("light", NARROW, "0"),
    "report_dark_shardings.png": ("dark", WIDE, _TO.format("shardings")),
    "report_light_decisions.png": ("light", WIDE, _OPENED + _TO.format("decisions")),
    "report_light_planning.png": ("light", WIDE, _TO.format("planning")),
    "report_dark_pareto.png": ("dark", WIDE, _TO.format("pareto")),
}
"""For each file: the theme, the size of the window, and the script that runs before the picture is
taken."""


def planned() -> dict[str, Any]:
    """Returns the data of the plan's report."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    config = gpt.SIZES["gpt-13b-4l"]
    arguments = gpt.abstract_state(config), gpt.abstract_batch(config)
    plan = kiwi.plan(
        gpt.make_train_step(config),
        *arguments,
        mesh_shape=(2, 4),
        donate_argnums=0,
        memory_budget="12GiB",
        plan_cache=False,
    )
    return report_data(document(plan), plan, json.loads(SWEEP.read_text()))


def take(data: dict[str, Any], folder: Path, executable: str) -> None:
    """Takes all pictures of the report into a folder."""
    page = folder / "report.html"
    page.write_text(render(data), encoding="utf-8")
    for name, (theme, (width, height), script) in PICTURES.items():
        with Browser(executable, width, height) as browser:
            browser.use_theme(theme)
            browser.open(page)
            browser.evaluate(script)
            browser.screenshot(folder / name)
    page.unlink()


def main() -> int:
    """Takes the pictures, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_pictures")
    parser.add_argument("--data", metavar="FILE.json", type=Path)
    data_file = parser.parse_args().data
    executable = find_chromium()
    if executable is None:
        print(f"No browser: {'; '.join(WHY_NOT)}", file=sys.stderr)
        return 1
    if data_file is not None and data_file.exists():
        data = json.loads(data_file.read_text())
    else:
        data = planned()
        if data_file is not None:
            data_file.write_text(json.dumps(data))
    take(data, IMAGES, executable)
    return 0


if __name__ == "__main__":
    sys.exit(main())
