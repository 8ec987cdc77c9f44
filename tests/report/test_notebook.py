"""Plans in notebooks, and the curves that reports draw."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import kiwi
from examples import mlp
from kiwi.plans.document import document
from kiwi.plans.report_data import report_data
from kiwi.report.notebook import memory_curves
from tests.helpers.on_cpu import ON_CPU

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

CONFIG = mlp.MlpConfig(layers=2, width=32, batch=64)


@pytest.fixture(scope="module")
def plan():
    args = mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG)
    return kiwi.plan(
        mlp.make_train_step(CONFIG), *args, mesh_shape=(2, 4), profile=ON_CPU, donate_argnums=0
    )


def test_the_curves_sum_to_the_estimate(plan):
    total = np.sum(list(memory_curves(document(plan)).values()), axis=0)
    np.testing.assert_allclose(total, plan.estimate.memory_bytes)


def test_the_compiled_curve_peaks_at_the_compiled_peak(plan):
    curve = report_data(document(plan))["compiled_curve"]
    assert len(curve) == len(plan.decisions)
    assert max(curve) == max(plan.compiled.memory.curve_bytes)


def test_a_plan_without_check_has_no_compiled_curve(plan):
    assert report_data({**document(plan), "checks": None})["compiled_curve"] is None


def test_notebooks_show_figures_curve_and_arguments(plan):
    text = plan._repr_html_()
    ElementTree.fromstring(text.replace("&nbsp;", " "))  # well-formed
    assert "<script" not in text and "memory over the step" in text
    assert "state.params" in text and "train_step" in text


def test_plot_memory_draws_every_category_and_the_compiled_curve(plan):
    ax = plan.plot_memory()
    labels = ax.get_legend_handles_labels()[1]
    assert "compiled" in labels and len(labels) >= 4
    assert plan.plot_memory(ax) is ax
    matplotlib.pyplot.close(ax.figure)


def test_a_report_is_written_from_the_plan_itself(plan, tmp_path):
    plan.write_report(tmp_path / "report.html")
    assert "train_step" in (tmp_path / "report.html").read_text()
