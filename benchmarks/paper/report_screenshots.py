"""Pictures of the report of gpt-13b-4l in a headless Chromium at 1280 x 800, light and dark.

python -m benchmarks.paper.report_screenshots
"""

import json
import tempfile
from pathlib import Path

import kiwi
from examples import gpt
from kiwi.plans.document import document
from kiwi.plans.report_data import report_data
from kiwi.report import write_report
from tests.helpers.browser import WHY_NOT, Browser, find_chromium

PICTURES = Path(__file__).parents[1] / "docs" / "images"
SWEEP = Path(__file__).parents[1] / "benchmarks" / "sweep_results" / "gpt_13b_4l.json"

PARTS = {"light": ("decisions",), "dark": ("shardings", "pareto")}
"""The sections that are shown besides the top of the page, by theme."""


def main() -> None:
    """Plans, writes the report, and takes pictures into `docs/images`."""
    executable = find_chromium()
    if executable is None:
        raise SystemExit(f"No browser: {'; '.join(WHY_NOT)}")
    config = gpt.SIZES["gpt-13b-4l"]
    args = gpt.abstract_state(config), gpt.abstract_batch(config)
    step = gpt.make_train_step(config)
    plan = kiwi.plan(step, *args, mesh_shape=(2, 4), memory_budget="8GiB", donate_argnums=0)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.html")
        write_report(report, report_data(document(plan), plan, json.loads(SWEEP.read_text())))
        for theme in ("light", "dark"):
            _take(executable, report, theme)


def _take(executable: str, report: Path, theme: str) -> None:
    with Browser(executable) as browser:
        browser.use_theme(theme)
        browser.open(report)
        browser.screenshot(PICTURES / f"report_{theme}.png")
        browser.click("#decisions tbody tr.item td:nth-child(2)")
        for part in PARTS[theme]:
            browser.evaluate(f"document.getElementById({part!r}).scrollIntoView()")
            browser.screenshot(PICTURES / f"report_{theme}_{part}.png")
        if browser.errors:
            raise SystemExit(f"The report has errors: {browser.errors}")


if __name__ == "__main__":
    main()
