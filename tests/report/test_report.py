"""The HTML report in a headless browser: no errors, no network, every part in use."""

import json
from dataclasses import replace

import pytest

import kiwi
from examples import gpt
from kiwi.configurations.configuration import Configuration, Row, State
from kiwi.configurations.result import SearchResult
from kiwi.plans.comparison import comparison
from kiwi.plans.document import document
from kiwi.plans.findings import findings
from kiwi.plans.report_data import report_data
from kiwi.report import render, render_comparison, write_page, write_report
from tests.helpers.browser import WHY_NOT, Browser, find_chromium
from tests.helpers.on_cpu import ON_CPU

SWEEP = {
    "seconds": 12.0,
    "points": [
        {
            "mesh_shape": shape,
            "device_count": 8,
            "memory_budget_bytes": budget,
            "step_seconds": step,
            "peak_bytes": peak,
            "gap": 0.01,
            "pareto": pareto,
        }
        for shape, budget, step, peak, pareto in (
            ([2, 4], 2**34, 0.08, 9 * 2**30, True),
            ([8], 2**34, 0.09, 12 * 2**30, False),
            ([8], 2**32, None, None, False),
        )
    ],
}


def _found(state, batch, seconds=None, why=""):
    return Row(Configuration("h100-sxm", (2, 4), batch), state, 1.0, 0.08, seconds, 2**30, why=why)


SEARCH = SearchResult(
    (
        _found(State.BEST, 32, seconds=0.1),
        _found(State.PLANNED, 16, seconds=0.09),
        _found(State.LEFT_OUT, 8, why="No plan of it is expected below 80 ms."),
    ),
    "samples",
    60.0,
    plan_of=lambda row: None,  # pyright: ignore[reportArgumentType]
).json()


def plan_of(size: str, **options):
    config = replace(gpt.SIZES[size], layers=1)
    step = gpt.make_train_step(config)
    args = gpt.abstract_state(config), gpt.abstract_batch(config)
    return kiwi.plan(step, *args, mesh_shape=(2, 4), donate_argnums=0, **options)


@pytest.fixture(scope="module")
def tiny():
    free = plan_of("tiny", verify="cpu", profile=ON_CPU, gap=0.1, time_limit_seconds=5)
    budget = int(0.8 * free.estimate.peak_bytes)
    return plan_of(
        "tiny", memory_budget=budget, verify="cpu", profile=ON_CPU, gap=0.1, time_limit_seconds=5
    )


@pytest.fixture(scope="module")
def unchecked():
    return plan_of("tiny", verify=None, gap=0.1, time_limit_seconds=5)


@pytest.fixture(scope="module")
def report(request, tmp_path_factory, tiny):
    """A report in a file, with a sweep's curve."""
    large = request.param == "gpt-13b-1l"
    plan = plan_of(request.param, memory_budget="12GiB", profile=ON_CPU, gap=0.1) if large else tiny
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, report_data(document(plan), plan, SWEEP, SEARCH))
    return plan, path


@pytest.fixture
def browser():
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"the report is not opened: {'; '.join(WHY_NOT)}")
    with Browser(executable) as browser:
        yield browser


def text(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")


def count(browser, selector):
    return browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")


@pytest.mark.parametrize(
    ("report", "theme"),
    [("tiny", "light"), ("tiny", "dark"), ("gpt-13b-1l", "light")],
    indirect=["report"],
)
def test_every_part_of_the_report_works(report, browser, theme, tmp_path):
    plan, path = report
    browser.use_theme(theme)
    browser.open(path)
    assert text(browser, "h1") == "train_step"
    check_memory(browser, plan)
    check_shardings(browser, plan)
    check_decisions(browser, plan)
    check_curves(browser)
    check_planning(browser, plan)
    check_times(browser, plan)
    check_theme(browser, theme)
    browser.screenshot(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 20_000
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []


def check_memory(browser, plan):
    assert f"operator {plan.estimate.peak_unit} (the predicted peak)" in text(
        browser, "#alive-title"
    )
    shown = text(browser, "#alive li:last-child .size")
    assert shown == browser.evaluate(f"bytes({max(plan.estimate.memory_bytes)})")
    browser.hover("#memory-chart", 0.5, 0.5)
    assert "predicted" in text(browser, "#tip")
    browser.click("#memory-chart", 0.3, 0.5)
    assert "the predicted peak" not in text(browser, "#alive-title")
    browser.click("#at-compiled-peak")
    assert "compiled peak" in text(browser, "#alive-title") and count(browser, "#alive li") > 3
    browser.click("#at-peak")
    assert "the predicted peak" in text(browser, "#alive-title")


def check_shardings(browser, plan):
    before = text(browser, "#mesh-panel")
    assert count(browser, "#mesh-panel .device") == plan.mesh.size
    browser.click("#tensors button:nth-child(3)")
    assert text(browser, "#mesh-panel") != before
    browser.click("button[data-kind='activations']")
    assert count(browser, "#tensors button") > 3
    assert count(browser, "#mesh-panel .device") == plan.mesh.size


def check_decisions(browser, plan):
    rows = "#decisions tbody tr.item"
    everything = count(browser, rows)
    assert everything == min(600, len(plan.decisions))
    browser.click("#filter")
    browser.type("dot_general forward")
    browser.evaluate("document.getElementById('phase').focus()")
    assert count(browser, rows) == 0  # words are sought in name, source and layout, not in phase
    browser.evaluate("filter = document.getElementById('filter'); filter.value = 'dot_general'; 0")
    browser.evaluate("filter.dispatchEvent(new Event('input')); 0")
    assert 0 < count(browser, rows) < everything
    browser.evaluate(
        "phase = document.getElementById('phase'); phase.value = 'forward';"
        "phase.dispatchEvent(new Event('change')); 0"
    )
    wanted = sum(d.opcode == "dot_general" and d.phase == "forward" for d in plan.decisions)
    assert count(browser, rows) == wanted
    browser.click("th[data-key='0'] button")
    first = "Number(document.querySelector('#decisions tbody tr.item td').textContent)"
    ascending = browser.evaluate(first)
    browser.click("th[data-key='0'] button")
    assert browser.evaluate(first) > ascending
    browser.click("#decisions tbody tr.item td:nth-child(2)")
    assert "options, if nothing else changed" in text(browser, "tr.detail")
    browser.click("tr.detail button")
    assert "the predicted peak" not in text(browser, "#alive-title") or plan.estimate.peak_unit
    browser.click("#decisions tbody tr.item td:nth-child(2)")
    assert count(browser, "tr.detail") == 0


def check_curves(browser):
    assert count(browser, "#search-chart .point") == 2
    assert count(browser, "#search tbody tr") == 3
    assert "expected below 80 ms" in text(browser, "#search tbody tr:last-child")
    assert count(browser, "#solver-chart .state") >= 1
    browser.hover("#solver-chart .state")
    assert "best step" in text(browser, "#tip")
    assert count(browser, "#pareto-chart .point") == 2
    browser.hover("#pareto-chart .point")
    assert "mesh" in text(browser, "#tip")


def check_planning(browser, plan):
    assert count(browser, "#history tbody tr") == len(plan.history)
    assert count(browser, "#timings tbody tr") == len(plan.timings)
    assert "compiled" in text(browser, "#deviations")
    listed = "[...document.querySelectorAll('#notes code')].map((code) => code.textContent)"
    codes = browser.evaluate(listed)
    assert (codes or []) == [note.code for note in plan.notes]


def check_times(browser, plan):
    shown = browser.evaluate(
        "[...document.querySelectorAll('#time .stack div')].map((d) => parseFloat(d.style.width))"
    )
    assert sum(shown) == pytest.approx(100, abs=0.1)
    assert not browser.evaluate("/\\de-\\d/.test(document.getElementById('main').innerText)")


def check_theme(browser, theme):
    background = "getComputedStyle(document.body).backgroundColor"
    before = browser.evaluate(background)
    assert browser.evaluate("document.getElementById('theme').textContent").lower() != theme
    browser.click("#theme")
    assert browser.evaluate(background) != before


@pytest.mark.parametrize("width", [1440, 390])
def test_the_first_screen_says_what_matters_and_nothing_scrolls_sideways(tiny, tmp_path, width):
    executable = find_chromium()
    if executable is None:
        pytest.skip(f"the report is not opened: {'; '.join(WHY_NOT)}")
    write_report(tmp_path / "report.html", report_data(document(tiny), tiny, SWEEP, SEARCH))
    with Browser(executable, width, 844) as browser:
        browser.open(tmp_path / "report.html")
        for element in (".tile:nth-child(1)", ".tile:nth-child(2)", ".finding.main .next"):
            bottom = f"document.querySelector({element!r}).getBoundingClientRect().bottom"
            assert 0 < browser.evaluate(bottom) < 844
        assert "limits the step" in text(browser, ".finding.main b")
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.errors == []


def test_two_plans_are_compared_on_a_page(tiny, unchecked, tmp_path, browser):
    data = comparison(document(tiny), document(unchecked), ("a.json", "b.json"))
    write_page(tmp_path / "compare.html", render_comparison(data))
    browser.open(tmp_path / "compare.html")
    assert "peak" in text(browser, "#totals") and count(browser, "#compare-chart path") == 2
    assert count(browser, "#differences tbody tr") == len(data["differences"]) > 0
    assert browser.errors == []


def test_what_limits_a_plan_is_said_of_saved_plans_too(tiny):
    found = findings(document(tiny))
    assert found[0].title.endswith("limits the step") and all(each.advice for each in found)
    over = document(tiny)
    over["options"]["memory_budget_bytes"] = 1000
    assert findings(over)[0].title == "Over the budget"
    again = document(tiny)
    again["estimate"]["recompute_seconds"] = 0.9 * again["estimate"]["step_seconds"]
    again["estimate"]["compute_seconds"] = 0.1 * again["estimate"]["step_seconds"]
    assert any(each.title.startswith("Recomputation") for each in findings(again))


def test_a_saved_plan_without_check_has_a_report_too(unchecked, tmp_path, browser):
    write_report(tmp_path / "report.html", report_data(document(unchecked)))
    browser.open(tmp_path / "report.html")
    assert "not compiled" in text(browser, "#head")
    assert browser.errors == [] and count(browser, "#at-compiled-peak") == 0


def test_names_in_a_plan_are_text_not_markup(tiny):
    found = document(tiny)
    found["function"]["name"] = "</script><script>alert(1)</script>"
    page = render(report_data(found))
    assert "<script>alert" not in page and "&lt;/script&gt;" in page


def test_the_report_asks_for_nothing_outside_itself(tiny):
    page = render(report_data(document(tiny), tiny))
    for word in ("http://", "https://", "@import", "src=", 'href="/'):
        assert word not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_report_that_cannot_be_written_is_said(tiny, tmp_path):
    with pytest.raises(kiwi.errors.InvalidArgumentError, match="No such file"):
        write_report(tmp_path / "none" / "r.html", report_data(document(tiny)))
