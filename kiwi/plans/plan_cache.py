"""The cache of plans on disk: a request that was answered once is not searched again.

A file is a plan file (`kiwi.plans.file`) with one more section. Its name consists of the digest of
the request's family and the digest of the request. The digests include the sources of Kiwi, so a
changed Kiwi does not use older files. A file that cannot be read is ignored. A plan that cannot be
written is not kept.

**A family** consists of all requests that differ only in the budget. The plan of a smaller budget
answers a request for a larger budget if its program is faster. So the compiled program for more
memory is never slower than one for less memory.

**The identity of a request**: equal requests have equal plans. So a request consists of everything
that may decide a plan: the traced program, the caller's statements about arguments and results, the
settings with the hardware and its measurements, the sources of Kiwi, the versions of the libraries,
and everything that the compile check depends on. If it contained something irrelevant, a plan would
be made again without need. If something were missing, a wrong plan would be returned.
"""

import datetime
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from kiwi.calls.signature import result_shardings
from kiwi.codec import from_plain, to_plain
from kiwi.errors import KiwiError
from kiwi.hlo.kernels import kernel_text
from kiwi.messages import Note, topics
from kiwi.options import IN_FILES, Settings
from kiwi.plans.breakdown import Decision
from kiwi.plans.document import Document, document
from kiwi.plans.file import read, write
from kiwi.plans.fingerprint import canonical, fingerprint
from kiwi.plans.plan import Plan
from kiwi.plans.plan_codec import plan_converter
from kiwi.plans.record import MadeBy, Origin, Round
from kiwi.plans.restore import restore
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes
from kiwi.version import VERSION
from kiwi.xla.compilers import ATTACHED

_LOG = logging.getLogger(__name__)

FOLDER_VARIABLE = "KIWI_PLAN_CACHE"
"""The environment variable that names the cache's folder. "off" disables the cache."""

MOST_FILES = 500
"""The cache keeps this many files, the last used ones, and deletes the others."""

LEAST_FASTER = 0.999
"""The plan of a smaller budget is used if its program takes less than this fraction of the time."""

_PACKAGES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt"),
    *("jax-cuda13-pjrt", "numba", "llvmlite", "numpy", "scipy", "ortools", "highspy", "pytoulbar2"),
)
_COMPILER_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclass(frozen=True)
class _Made:
    """The facts about the making of a plan that plan files do not contain. `on` is the date."""

    on: str
    planning_seconds: float
    solver_seconds: float
    work: int
    iterations: int
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class PlanCache:
    """A cache of plans in the files of a folder. Several processes may share the folder."""

    folder: Path

    @staticmethod
    def of_user() -> "PlanCache | None":
        """Returns the cache in this user's folder; None if the environment says "off" or the user
        has no home folder."""
        named = os.environ.get(FOLDER_VARIABLE, "")
        if named == "off":
            return None
        try:
            return PlanCache(Path(named) if named else _caches() / "kiwi" / "plans")
        except RuntimeError:  # A user without a home.
            return None

    def plan(self, step: StepToPlan, settings: Settings, planner: MadeBy) -> Plan:
        """The plan of an equal earlier request, or a new plan, which is kept. Raises as the planner
        does."""
        family = request_family(step, settings)
        path = self.folder / f"{family}_{_with_budget(family, settings)}.json"
        answer = _read(path, step, settings, planner)
        if answer is None:
            answer = planner.make(step, settings)
            # If the clock ended a search, another run may find a better plan.
            if answer.solve_result.deterministic and answer.as_written is None:
                self._keep(answer, path)
        other_files = (
            file for file in sorted(self.folder.glob(f"{family}_*.json")) if file != path
        )
        return _fastest(answer, other_files, step, settings, planner)

    def _keep(self, plan: Plan, path: Path) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write({**document(plan), "made": _made(plan)}, path)
            cached = sorted(self.folder.glob("*.json"), key=lambda file: -file.stat().st_mtime)
            for unused in cached[MOST_FILES:]:
                unused.unlink(missing_ok=True)
        except (KiwiError, OSError) as error:
            _LOG.debug("The plan is not kept in %s: %s", path, error)


def _caches() -> Path:
    if platform.system() == "Darwin":
        return Path.home() / "Library" / "Caches"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path.home() / ".cache"


def _made(plan: Plan) -> Document:
    today, result = datetime.datetime.now(datetime.UTC).date().isoformat(), plan.solve_result
    searched = result.seconds, result.work, result.iterations
    return to_plain(_Made(today, plan.planning_seconds, *searched, plan.rounds))


def _read(path: Path, step: StepToPlan, settings: Settings, planner: MadeBy) -> Plan | None:
    """Returns the plan in a file; None if the file does not exist or cannot be read."""
    try:
        saved = read(path)
        origin_data = from_plain(saved["made"], _Made)
        plan = restore(saved, step, planner)
        os.utime(path)
    except (KiwiError, OSError, KeyError, TypeError, ValueError, IndexError) as error:
        _LOG.debug("No plan is taken from %s: %s", path, error)
        return None
    return _completed(plan, origin_data, step, settings, planner)


def _fastest(
    plan: Plan, others: Iterable[Path], step: StepToPlan, settings: Settings, planner: MadeBy
) -> Plan:
    """Returns `plan`, or the plan of an otherwise equal request with a smaller budget if that
    plan's program is faster.

    `others`: the files of the other requests of the family.
    """
    own_seconds = plan.compiled and plan.compiled.step_seconds
    if own_seconds is None:
        return plan
    best, most_seconds = plan, LEAST_FASTER * own_seconds
    for path in others:
        seconds = _seconds_within(path, settings.memory_budget_bytes)
        if seconds is not None and seconds < most_seconds:
            candidate = _read(path, step, settings, planner)
            if candidate is not None and candidate.fits:
                best, most_seconds = _for_larger_budget(candidate, plan), seconds
    return best


def _seconds_within(path: Path, budget_bytes: int) -> float | None:
    """Returns the seconds of the compiled program of a plan in a file; None if the plan's budget is
    not below `budget_bytes`, or if the seconds are not known."""
    try:
        saved = read(path)
        if saved["options"]["memory_budget_bytes"] >= budget_bytes:
            return None
        return float(saved["checks"]["time"]["step_seconds"])
    except (KiwiError, OSError, KeyError, TypeError, ValueError):
        return None


def _for_larger_budget(other: Plan, plan: Plan) -> Plan:
    """Returns `other`, the plan of a smaller budget, as the answer to the request of `plan`. The
    bound for the larger budget also holds for the smaller budget."""
    note = Note.of(
        topics.FROM_SMALLER_BUDGET,
        f"The plan was made for a budget of {format_bytes(other.memory_budget_bytes)}: its program "
        "is faster than that of the plan for this budget.",
        budget_bytes=other.memory_budget_bytes,
    )
    bound = min(other.solve_result.bound, plan.solve_result.bound)
    return replace(
        other,
        memory_budget_bytes=plan.memory_budget_bytes,
        solve_result=replace(other.solve_result, bound=bound),
        notes=(*other.notes, note),
    )


def _completed(
    plan: Plan, made: _Made, step: StepToPlan, settings: Settings, planner: MadeBy
) -> Plan:
    """Returns the plan with the data that files do not contain: source lines and measurements from
    the request, and the times of its making."""
    program = step.program
    roots = [program.equations[unit.root] for unit in plan.execution.units.units]
    decisions: tuple[Decision, ...] = tuple(
        replace(
            decision, source_line=root.source_line or root.name_stack, name_stack=root.name_stack
        )
        for decision, root in zip(plan.decisions, roots, strict=True)
    )
    traced = replace(step, units=plan.execution.units)
    residencies = tuple((decision.choice.residency,) for decision in plan.decisions)
    result = replace(
        plan.solve_result, seconds=made.solver_seconds, work=made.work, iterations=made.iterations
    )
    corrected = replace(settings, corrections=plan.corrections)
    return replace(
        plan,
        mesh=settings.mesh,
        breakdown=replace(plan.breakdown, operators=decisions),
        traced=traced,
        origin=Origin(traced, corrected, planner, residencies),
        solve_result=result,
        rounds=made.rounds,
        planning_seconds=made.planning_seconds,
        cached_on=made.on,
    )


def request_digest(step: StepToPlan, settings: Settings) -> str:
    """Returns the SHA-256 digest of a request."""
    return _with_budget(request_family(step, settings), settings)


def _with_budget(family: str, settings: Settings) -> str:
    return hashlib.sha256(f"{family} {settings.memory_budget_bytes}".encode()).hexdigest()


def request_family(step: StepToPlan, settings: Settings) -> str:
    """Returns the SHA-256 digest of a request without its budget of device memory."""
    parts = {
        "kiwi": [VERSION, _sources()],
        "versions": _versions(),
        "program": _program(step),
        "call": _call(step),
        "settings": dict(_settings(settings)),
        "check": _check(settings.verify),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """Returns a digest of all files that are installed with Kiwi."""
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": sys.version, "machine": f"{platform.system()} {platform.machine()}"}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _program(step: StepToPlan) -> list[Any]:
    program, print_ = step.program, fingerprint(step.program)
    values = (*program.arguments, *program.results)
    return [
        print_.structure,
        print_.values,
        [equation.name_stack for equation in program.equations],
        [
            canonical(kernel_text(kernel_equation.kernel, kernel_equation.kernel_jaxpr))
            for kernel_equation in program.equations
            if kernel_equation.kernel
        ],
        canonical(dict(program.hints)),
        canonical(dict(program.constraints)),
        [program.is_on_host(value) for value in values],
    ]


def _call(step: StepToPlan) -> list[Any]:
    call = step.call
    given_shardings = [canonical(call.given_shardings.get(k)) for k in range(len(call.paths))]
    results = result_shardings(call.options, step.out_tree)
    return [
        list(call.paths),
        [shape.weak_type for shape in call.shapes],
        list(call.donated),
        given_shardings,
        [canonical(asked) for asked in call.asked],
        canonical(call.tree),
        canonical(step.out_tree),
        [canonical(sharding) for sharding in results],
    ]


def _settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    for name in IN_FILES:
        yield name, canonical(getattr(settings, name))
    mesh = settings.mesh
    conversion = plan_converter(mesh.axis_names)
    yield "mesh", to_plain(mesh, conversion)
    yield "corrections", to_plain(settings.corrections, conversion)
    yield "table", mesh.table and mesh.table.digest
    yield "host_budget", settings.host_budget_bytes
    constraints = settings.constraints
    # The order matters: the first pattern that matches counts.
    yield (
        "shardings",
        [(pattern, canonical(sharding)) for pattern, sharding in constraints.shardings.items()],
    )
    yield (
        "constraints",
        [list(constraints.forbid_replicated), list(constraints.memory_kinds.items())],
    )
    yield "notes", [sorted(settings.dropped_pins), [note.plain for note in settings.notes]]


def _check(verify: str | None) -> list[Any]:
    """Returns everything besides the plan that the compiled program depends on: environment
    variables, JAX's configuration, and attached devices."""
    if verify is None:
        return []
    variables = {name: os.environ.get(name, "") for name in _COMPILER_VARIABLES}
    configuration = {name: canonical(value) for name, value in jax.config.values.items()}
    devices = [str(device.device_kind) for device in jax.devices()] if verify == ATTACHED else []
    return [variables, configuration, devices]
