"""Plans that were made before, on disk: a request that was answered once is not searched again.

A file is a plan file (`kiwi.plans.file`) with one section more. Its name is the digest of the
request (`kiwi.plans.request`), in which the sources of Kiwi are: a changed Kiwi does not find what
another one made. What cannot be read is planned anew, and what cannot be written is left out.
"""

import datetime
import logging
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from kiwi.codec import from_plain, to_plain
from kiwi.errors import KiwiError
from kiwi.options import Settings
from kiwi.plans.breakdown import Decision
from kiwi.plans.document import Document, document
from kiwi.plans.file import read, write
from kiwi.plans.plan import Plan
from kiwi.plans.record import MadeBy, Origin, Round
from kiwi.plans.request import request_digest
from kiwi.plans.restore import restore
from kiwi.problem.step import StepToPlan

_LOG = logging.getLogger(__name__)

FOLDER_VARIABLE = "KIWI_PLAN_CACHE"
"""The environment variable that names the folder; "off": there is none."""

MOST_FILES = 500
"""Those that were used last are kept."""


@dataclass(frozen=True)
class _Made:
    """How a plan was made; files of plans do not have this."""

    on: str
    planning_seconds: float
    solver_seconds: float
    work: int
    iterations: int
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class PlanCache:
    """Plans in the files of a folder, which any number of processes may share."""

    folder: Path

    @staticmethod
    def of_user() -> "PlanCache | None":
        """In the folder for caches of this user; None where the environment says "off", or there
        is no such folder."""
        named = os.environ.get(FOLDER_VARIABLE, "")
        if named == "off":
            return None
        try:
            return PlanCache(Path(named) if named else _caches() / "kiwi" / "plans")
        except RuntimeError:  # A user without a home.
            return None

    def plan(self, step: StepToPlan, settings: Settings, planner: MadeBy) -> Plan:
        """The plan of an equal request, or a new one, which is kept; raises as the planner."""
        digest = request_digest(step, settings)
        path = self.folder / f"{digest}.json"
        found = _read(path, step, settings, planner)
        if found is not None:
            return found
        made = planner.make(step, settings)
        # Where the clock ended a search, another run may do better.
        if made.solve_result.deterministic and made.as_written is None:
            self._keep(made, path)
        return made

    def _keep(self, plan: Plan, path: Path) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write({**document(plan), "made": _made(plan)}, path)
            kept = sorted(self.folder.glob("*.json"), key=lambda each: -each.stat().st_mtime)
            for old in kept[MOST_FILES:]:
                old.unlink(missing_ok=True)
        except (KiwiError, OSError) as error:
            _LOG.debug("The plan is not kept in %s: %s", path, error)


def _caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path.home() / ".cache"


def _made(plan: Plan) -> Document:
    today, result = datetime.datetime.now(datetime.UTC).date().isoformat(), plan.solve_result
    searched = result.seconds, result.work, result.iterations
    return to_plain(_Made(today, plan.planning_seconds, *searched, plan.rounds))


def _read(path: Path, step: StepToPlan, settings: Settings, planner: MadeBy) -> Plan | None:
    """The plan in a file; None if there is none, or one that cannot be read."""
    try:
        saved = read(path)
        made = from_plain(saved["made"], _Made)
        plan = restore(saved, step, planner)
        os.utime(path)
    except (KiwiError, OSError, KeyError, TypeError, ValueError, IndexError) as error:
        _LOG.debug("No plan is taken from %s: %s", path, error)
        return None
    return _completed(plan, made, step, settings, planner)


def _completed(
    plan: Plan, made: _Made, step: StepToPlan, settings: Settings, planner: MadeBy
) -> Plan:
    """With what the request says that files do not: lines of the source, measurements, times."""
    program = step.program
    roots = [program.equations[unit.root] for unit in plan.execution.units.units]
    decisions: tuple[Decision, ...] = tuple(
        replace(decision, source_line=root.source_line, name_stack=root.name_stack)
        for decision, root in zip(plan.decisions, roots, strict=True)
    )
    traced = replace(step, units=plan.execution.units)
    residencies = tuple((entry.residency,) for entry in plan.breakdown.operators)
    result = replace(
        plan.solve_result,
        seconds=made.solver_seconds,
        work=made.work,
        iterations=made.iterations,
    )
    return replace(
        plan,
        mesh=settings.mesh,
        decisions=decisions,
        traced=traced,
        origin=Origin(traced, settings, planner, residencies),
        solve_result=result,
        rounds=made.rounds,
        planning_seconds=made.planning_seconds,
        cached_on=made.on,
    )
