"""The progress line of `kiwi plan`."""

from kiwi.cli.commands import _Reporter
from kiwi.solver import Progress
from kiwi.timings import measured, stage


def test_it_names_stage_round_best_step_and_gap():
    shown = []
    with measured() as watch:
        reporter = _Reporter(lambda *, description: shown.append(description), watch)
        watch.on_change = reporter.show
        with stage("solve"):
            reporter(Progress(0.1, None, 0.0, None, "lagrangian"))
            reporter(Progress(0.2, 2e-3, 1.9e-3, 10, "lagrangian"))
        watch.begin_round()
        with stage("compile"):
            pass
    assert shown[1] == "solve: best step none yet"
    assert shown[2] == "solve: best step 2 ms, gap 5.0%"
    assert shown[-1] == "compile, round 1: best step 2 ms, gap 5.0%"
