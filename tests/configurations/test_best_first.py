"""The order of a search: the planned and the skipped configurations do not depend on which one
finishes first."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kiwi.configurations.best_first import BestFirst
from kiwi.configurations.configuration import Outcome, Stage
from kiwi.configurations.tasks import Found, InThisProcess

BOUND, PLAN, CHECK = Stage
SECONDS = {  # bound, plan, checked plan
    0: (5.0, 6.0, 6.0),
    1: (3.0, 4.0, 7.0),
    2: (4.0, 5.0, 5.0),
    3: (9.0, 9.0, 9.0),
    4: (1.0, None, None),
    5: (5.5, 5.6, 5.6),
}


def outcome(stage, number):
    seconds = SECONDS[number][list(Stage).index(stage)]
    error = "" if seconds is not None else "no plan"
    return Found(Outcome(stage, 0.0, seconds, error=error))


def late_at_first(stage, number):
    """Delays the first tasks, so that they finish last."""
    time.sleep(0.01 * (len(SECONDS) - number))
    return outcome(stage, number)


def searched(pool, most_tasks, numbers=SECONDS, run=outcome, **more):
    found = []
    search = BestFirst(
        lambda stage, number, plan: pool.submit(run, stage, number),
        lambda number, seconds: seconds,
        tuple(Stage),
        most_tasks=most_tasks,
        on_found=lambda task, _: found.append(task),
        **{"known": {}, "plans_all": False, **more},
    )
    best = search.best(numbers)
    counted = {n: [f.outcome.stage for f in each] for n, each in search.counted.items()}
    return best, counted, found


def test_nothing_is_planned_whose_bound_is_no_better():
    best, counted, found = searched(InThisProcess(), 1)
    assert best == 2
    assert counted == {
        0: [BOUND],
        1: [BOUND, PLAN, CHECK],  # the fastest plan by its estimate, slow when it fits
        2: [BOUND, PLAN, CHECK],
        3: [BOUND],
        4: [BOUND, PLAN, CHECK],  # refused by its estimate, and by the compiler
        5: [BOUND],
    }
    assert len(found) == sum(map(len, counted.values()))


def test_what_finishes_first_changes_nothing():
    with ThreadPoolExecutor(4) as pool:
        best, counted, found = searched(pool, 4, run=late_at_first)
    assert (best, counted) == searched(InThisProcess(), 1)[:2]
    assert found[0] != (BOUND, 0), "what is done first is not what comes first"


def test_with_all_planned_the_best_is_the_same():
    best, counted, _ = searched(InThisProcess(), 1, plans_all=True)
    assert best == 2 and all(len(stages) >= 2 for stages in counted.values())


def test_what_is_known_is_not_asked_again():
    known = {
        (stage, number): outcome(stage, number) for stage in (BOUND, PLAN) for number in (1, 2)
    }
    best, _, found = searched(InThisProcess(), 1, known=known)
    assert best == 2 and not set(found) & set(known)


def test_of_configurations_without_plans_none_is_the_best():
    assert searched(InThisProcess(), 1, [4])[0] is None


def test_an_error_of_a_task_ends_the_search():
    def broken(*_):
        raise RuntimeError("broken")

    search = BestFirst(
        lambda *task: InThisProcess().submit(broken),
        lambda number, seconds: seconds,
        tuple(Stage),
        most_tasks=1,
        known={},
        on_found=lambda *_: None,
        plans_all=False,
    )
    with pytest.raises(RuntimeError, match="broken"):
        search.best([0])
