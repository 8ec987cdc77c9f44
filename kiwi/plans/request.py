"""The identity of a request for a plan: equal requests have equal plans.

All that may decide a plan is in it: the traced program, what the caller says of its arguments and
results, the settings with the hardware and its measurements, the sources of Kiwi, the versions of
what it computes with, and what the compile check depends on. Where something is in it that does not
matter, a plan is made again; where something were missing, an old one would be taken for it.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax

from kiwi.calls.signature import result_shardings
from kiwi.codec import to_plain
from kiwi.hlo.kernels import kernel_text
from kiwi.options import SearchOptions, Settings
from kiwi.plans.fingerprint import canonical, fingerprint
from kiwi.plans.plan_codec import plan_converter
from kiwi.problem.step import StepToPlan
from kiwi.version import VERSION
from kiwi.xla.compilers import ATTACHED

_PACKAGES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt"),
    *("jax-cuda13-pjrt", "numba", "llvmlite", "numpy", "scipy", "ortools", "highspy", "pytoulbar2"),
)
_COMPILER_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def request_digest(step: StepToPlan, settings: Settings) -> str:
    """The SHA-256 digest of a request."""
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
    """A digest of all that is installed with Kiwi."""
    root, found = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": sys.version, "machine": f"{platform.system()} {platform.machine()}"}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _program(step: StepToPlan) -> list[Any]:
    program, print_ = step.program, fingerprint(step.program)
    values = (*program.arguments, *program.results)
    return [
        print_.structure,
        print_.values,
        [equation.name_stack for equation in program.equations],
        [canonical(kernel_text(e.kernel, e.jaxpr_eqn)) for e in program.equations if e.kernel],
        canonical(dict(program.hints)),
        canonical(dict(program.constraints)),
        [program.is_on_host(value) for value in values],
    ]


def _call(step: StepToPlan) -> list[Any]:
    call = step.call
    given = [canonical(call.given_shardings.get(k)) for k in range(len(call.paths))]
    results = result_shardings(call.options, step.out_tree)
    return [
        list(call.paths),
        [shape.weak_type for shape in call.shapes],
        list(call.donated),
        given,
        canonical(call.tree),
        canonical(step.out_tree),
        [canonical(sharding) for sharding in results],
    ]


def _settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    for option in fields(SearchOptions):
        if option.metadata.get("in_files", True):
            yield option.name, canonical(getattr(settings, option.name))
    mesh = settings.mesh
    yield "mesh", to_plain(mesh, plan_converter(mesh.axis_names))
    yield "table", mesh.table and mesh.table.digest
    yield "budgets", [settings.memory_budget_bytes, settings.host_budget_bytes]
    given = settings.constraints
    # The first pattern that matches counts.
    yield "shardings", [(pattern, canonical(s)) for pattern, s in given.shardings.items()]
    yield "constraints", [list(given.forbid_replicated), list(given.memory_kinds.items())]
    yield "notes", [sorted(settings.dropped_pins), list(settings.notes)]


def _check(verify: str | None) -> list[Any]:
    """What the compiled program depends on beside the plan."""
    if verify is None:
        return []
    variables = {name: os.environ.get(name, "") for name in _COMPILER_VARIABLES}
    configuration = {name: canonical(value) for name, value in jax.config.values.items()}
    devices = [str(d.device_kind) for d in jax.devices()] if verify == ATTACHED else []
    return [variables, configuration, devices]
