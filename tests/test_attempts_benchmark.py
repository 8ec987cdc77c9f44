"""The count of attempts, and its page."""

import json
import re
from pathlib import Path

from benchmarks.attempts.cases import Case
from benchmarks.attempts.one import counted
from benchmarks.attempts.table import GONE, summary, table
from kiwi.campaign.attempts import ATTEMPTS
from kiwi.plans.history import Outcome, Trial

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "attempts" / "results.json"
PAGE = ROOT / "docs" / "evidence" / "structure.md"


def test_an_attempt_made_for_another_counts_for_both():
    row = counted(
        (
            Trial("tied layers", ("first search",), Outcome.FOUND, work=3),
            Trial("needed barriers", ("first search",), Outcome.ANSWER),
        )
    )
    assert row["made"] == {"first search": 2, "tied layers": 1, "needed barriers": 1}
    assert row["work"]["first search"] == row["work"]["tied layers"] == 3
    assert row["answers"] == ["first search", "needed barriers"]


def test_the_record_names_attempts_that_exist_or_are_gone():
    rows = json.loads(RESULTS.read_text("utf-8"))["rows"].values()
    made = {name for row in rows for name in row.get("made", ())}
    names = {attempt.name for attempt in ATTEMPTS}
    assert made <= {*names, *GONE} and names.isdisjoint(GONE)


def test_a_golden_is_a_case_with_the_recorded_budgets():
    request = Case("goldens", "mlp", "h100-sxm").request()
    assert list(request.budgets) == ["free", "loose", "tight"] and request.budgets["free"] is None


def test_the_page_has_the_table(request):
    rows = json.loads(RESULTS.read_text("utf-8"))["rows"]
    content = "\n".join((summary(rows), "", *table(rows)))
    text = re.sub(
        r"(<!-- census -->\n).*?(<!-- end -->)",
        lambda m: f"{m[1]}{content}\n{m[2]}",
        PAGE.read_text("utf-8"),
        flags=re.S,
    )
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text("utf-8") == text
