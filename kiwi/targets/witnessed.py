"""Compiles the witnesses of a target's rules, all in one separate process.

The process looks the examples up by the names of their rules, so that no functions are sent to it.
It waits for each program only until XLA has written the program's dump, before code is generated.
"""

import base64
import json
import os
import resource
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.errors import InvalidArgumentError, check_known
from kiwi.mesh import DeviceMesh
from kiwi.messages import topics
from kiwi.targets.registry import TARGETS
from kiwi.targets.rule import Rule
from kiwi.targets.target import Target
from kiwi.targets.witness import Example, Witness
from kiwi.xla.compile.dump import Dump, dump_options, dumped
from kiwi.xla.compile.worker import begun_without_step
from kiwi.xla.read.inspected import InspectedModule

_AXES = ("x", "y", "z")
_CPU_DEVICES = 8
"""The number of virtual CPU devices of the process: the size of the largest mesh of an example."""

_MOST_CPU_SECONDS = 60
"""The processor time for compiling one example. The operating system ends a compiler that exceeds
this limit, and the example counts as failed."""

_EXAMPLE, _CONTROL = "example", "control"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a witness with the installed compiler.

    - `rule`: the name of the rule.
    - `holds`: whether the module of the example shows the claim.
    - `is_refused`: whether the control compiles to a module that does not show the claim.
    - `found`: a summary of the example's module, or the reason why there is none.
    - `found_of_control`: the same for the control.
    """

    rule: str
    holds: bool
    is_refused: bool
    found: str
    found_of_control: str


def witnessed_rules(target: Target) -> tuple[Rule, ...]:
    """Returns the rules of a target that have a witness."""
    return tuple(rule for rule in target.rules if isinstance(rule.witness, Witness))


def outcomes(target: Target, names: Sequence[str]) -> Mapping[str, Outcome]:
    """Compiles the witnesses of the rules of these names, and returns their outcomes by name.

    A program that does not compile is an outcome, not an error.

    **Raises:** `InvalidArgumentError` for a rule that the target does not have, or that has no
    witness; `CompilerUnavailableError` if the target's compiler is not installed;
    `CompileCheckError` if its process ends without an answer.
    """
    rules = {rule.name: rule for rule in target.rules}
    for name in names:
        check_known(name, rules, "rule")
        _witness(rules[name])
    mesh = DeviceMesh.create((1,), target.observed_on)
    target.compiler.check_available(mesh.hardware)
    request = {"target": target.name, "rules": list(names)}
    answer = begun_without_step(compiled_there, request)()
    return {name: _outcome(target, rules[name], answer[name]) for name in names}


def _outcome(target: Target, rule: Rule, answer: Mapping[str, Any]) -> Outcome:
    witness = _witness(rule)
    examples = {_EXAMPLE: witness.example, _CONTROL: witness.control}
    shown, summaries = {}, {}
    for kind, example in examples.items():
        written = answer[kind]
        if "error" in written:
            shown[kind], summaries[kind] = None, f"no module: {written['error']}"
            continue
        module = _inspected(target, example, written)
        shown[kind], summaries[kind] = _is_shown(witness, module), module.summary()
    return Outcome(
        rule.name,
        shown[_EXAMPLE] is True,
        shown[_CONTROL] is False,
        summaries[_EXAMPLE],
        summaries[_CONTROL],
    )


def _is_shown(witness: Witness, module: InspectedModule) -> bool:
    """Returns whether a module shows the claim. A module that lacks the instruction or buffer that
    the claim is about does not show it."""
    try:
        return witness.shows(module)
    except (KeyError, IndexError, ValueError):
        return False


def _witness(rule: Rule) -> Witness:
    if not isinstance(rule.witness, Witness):
        raise InvalidArgumentError(
            f"The rule {rule.name!r} has no witness.",
            topic=topics.RULE_WITHOUT_WITNESS,
        )
    return rule.witness


def _inspected(target: Target, example: Example, written: Mapping[str, str]) -> InspectedModule:
    module, assignment = (base64.b64decode(written[part]) for part in ("module", "assignment"))
    shape = example.mesh_shape
    memories = target.compiler.other_memories
    axes = _AXES[: len(shape)]
    return InspectedModule.read(written["text"], module, assignment, shape, axes, memories)


def compiled_there(step: None, options: Mapping[str, Any], folder: str) -> Any:
    """Runs in the separate process. Returns, by rule, XLA's output for the example and the
    control."""
    jax.config.update("jax_num_cpu_devices", _CPU_DEVICES)
    target = TARGETS[options["target"]]
    rules = {rule.name: rule for rule in target.rules if rule.name in options["rules"]}
    return {
        name: {
            _EXAMPLE: _written_apart(target, _witness(rule).example, folder),
            _CONTROL: _written_apart(target, _witness(rule).control, folder),
        }
        for name, rule in rules.items()
    }


def _written_apart(target: Target, example: Example, folder: str) -> dict[str, str]:
    """Returns XLA's output for an example, compiled in a fork of this process.

    The fork must happen before this process uses its devices. The fork exits as soon as XLA has
    written the program, and so skips code generation. If XLA aborts, only the fork ends, and the
    other examples are still compiled.
    """
    answer = Path(folder, "answer.json")
    answer.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax warns of a fork: its threads may deadlock.
        child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_SECONDS, _MOST_CPU_SECONDS))
        answer.write_text(json.dumps(_written(target, example)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not answer.exists():
        return {"error": f"the compiler ended the process (status {status})"}
    return json.loads(answer.read_text())


def _written(target: Target, example: Example) -> dict[str, str]:
    """Returns XLA's output for an example as JSON-compatible strings, or under "error" the reason
    why there is none."""
    try:
        dump, text = _compiled(target, example)
    except Exception as error:  # Any error of jax or XLA: a new version may refuse the program.
        return {"error": f"{type(error).__name__}: {error}"}
    module, assignment = (
        base64.b64encode(part).decode() for part in (dump.module, dump.assignment)
    )
    return {"text": text, "module": module, "assignment": assignment}


def _compiled(target: Target, example: Example) -> tuple[Dump, str]:
    compiler = target.compiler
    if example.way is not None:
        compiler = compiler.overlapping[example.way]
    shape = example.mesh_shape
    mesh = DeviceMesh.create(shape, target.observed_on, axis_names=_AXES[: len(shape)])
    devices = compiler.compile_only_devices(mesh)
    with tempfile.TemporaryDirectory(prefix="kiwi-", ignore_cleanup_errors=True) as folder:
        options = {**compiler.check_options, **dump_options(folder)}
        lowered = _jitted(example, mesh.jax_mesh(devices), options).lower(*example.arguments)
        if not example.generates_code:
            dump = dumped(lowered.compile, folder, compiler.dump)
            return dump, dump.text
        text = lowered.compile().as_text()
        return dumped(lowered.compile, folder, compiler.dump), text


def _jitted(example: Example, jax_mesh: jax.sharding.Mesh, options: Mapping[str, Any]) -> Any:
    in_specs = example.in_specs or [PartitionSpec()] * len(example.arguments)
    out = example.out_specs
    return jax.jit(
        example.function,
        in_shardings=tuple(NamedSharding(jax_mesh, spec) for spec in in_specs),
        out_shardings=jax.tree.map(
            lambda spec: NamedSharding(jax_mesh, spec),
            out,
            is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
        ),
        donate_argnums=example.donated,
        keep_unused=True,
        compiler_options=dict(options),
    )
