"""`kiwi deviation --reduce`: the search for the smallest part of a function that deviates as the
function does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from kiwi.deviation.kernels import COMMUNICATION, COMPUTE, MEMORY, Deviation
from kiwi.deviation.measured import COLLECTIVES, TIME, Measured, measuring
from kiwi.deviation.measured import MEMORY as PEAK
from kiwi.deviation.pieces import whole_piece
from kiwi.deviation.printed import loaded, printed
from kiwi.deviation.reduction import MOST_TESTS, Reduced, Reduction, Report, smaller_meshes
from kiwi.errors import InvalidArgumentError
from kiwi.hlo.tracing import trace
from kiwi.json_file import write_text
from kiwi.messages import topics
from kiwi.options import Options
from kiwi.plans.plan import Plan
from kiwi.sizes import format_bytes, format_seconds

_KERNELS_OF = {PEAK: MEMORY, TIME: COMPUTE, COLLECTIVES: COMMUNICATION}
"""For each quantity, the kind of kernel rows that contain it."""

UNLIMITED = "1024TiB"
"""The memory budget of pieces: no piece exceeds it, because their memory is compared and not
limited."""

_BARE = {
    "mesh": None,
    "axis_names": None,
    "static_argnums": None,
    "static_argnames": None,
    "donate_argnums": None,
    "donate_argnames": None,
    "in_shardings": None,
    "out_shardings": None,
    "constraints": None,
    "offload_arguments": False,
    "host_memory_budget": None,
    "on_progress": None,
    "plan_cache": False,
    "memory_budget": UNLIMITED,
    "effort": "quick",
    "topology": None,
    "num_slices": None,
}
"""Options of pieces. They replace the options of the whole function."""


@dataclass(frozen=True)
class Witness:
    """A small function that deviates as a step does.

    - `quantity`: the quantity that deviates: "memory", "time" or "collectives".
    - `step`: the figures of the whole step.
    - `reduced`: the smallest piece found, with its figures.
    - `text`: the piece as a Python file with `function` and `make_args`.
    - `printed_measured`: the figures of the text's function; None if it has no plan.
    """

    quantity: str
    step: Measured
    reduced: Reduced
    text: str
    printed_measured: Measured | None

    @property
    def equations(self) -> int:
        """The number of equations of the small function."""
        return len(self.reduced.piece.nodes)

    @property
    def _as_printed(self) -> str:
        measured = self.printed_measured
        return "no plan" if measured is None else _sides(self.quantity, measured)

    @property
    def json(self) -> dict[str, Any]:
        """The result as plain data. Figures are pairs (estimated, compiled)."""
        reduced, again = self.reduced.measured, self.printed_measured
        return {
            "quantity": self.quantity,
            "equations": self.equations,
            "mesh_shape": list(self.reduced.mesh_shape),
            "tests": self.reduced.tests,
            "step": self.step.sides(self.quantity),
            "reduced": reduced.sides(self.quantity),
            "printed": None if again is None else again.sides(self.quantity),
            "text": self.text,
        }

    def write(self, path: str) -> None:
        """Writes the text to a file.

        **Raises:** `InvalidArgumentError` if the file cannot be written.
        """
        write_text(self.text, path)

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.reduced.mesh_shape))
        return "\n".join(
            [
                f"{self.equations} equations on {mesh}, after {self.reduced.tests} pieces: "
                f"{self.quantity} {_sides(self.quantity, self.reduced.measured)}; "
                f"the step: {_sides(self.quantity, self.step)}; as printed: {self._as_printed}",
                "",
                self.text,
            ]
        )


def reduce_deviation(
    plan: Plan,
    told: Deviation,
    options: Options,
    *,
    quantity: str | None = None,
    most_tests: int = MOST_TESTS,
    report: Report = lambda _: None,
) -> Witness | None:
    """Returns the smallest part found of a planned function that deviates as the function does;
    None if no part that was tried does.

    - `plan`: the compiled plan of the function.
    - `told`: the plan's deviation.
    - `options`: the options that the function was planned with.
    - `quantity`: "memory", "time" or "collectives"; None for the quantity that deviates most.
    - `most_tests`: the largest number of parts that are compiled.
    - `report`: takes a line about each part that is tried.

    **Raises:** `InvalidArgumentError` if the quantity does not deviate; `InvalidFunctionError` if
    the part that is found cannot be written as Python.
    """
    step = Measured.of_plan(plan)
    quantity = quantity or step.largest
    error = step.error(quantity)
    if error == 0.0:
        raise InvalidArgumentError(
            f"Estimate and compiled program agree in {quantity}.",
            topic=topics.NOTHING_DEVIATES,
        )
    call = plan.traced.call
    program = trace(_flat(call.function), call.shapes)
    target = plan.compiled.target if plan.compiled is not None else None
    bare = replace(options, **_BARE, verify=target, mesh_shape=(1,))
    measures = {
        shape: measuring(replace(bare, mesh_shape=shape))
        for shape in smaller_meshes(plan.mesh.shape)
    }
    reduction = Reduction(quantity, error, measures, most_tests, report)
    reduced = reduction.run(whole_piece(program), told.of(_KERNELS_OF[quantity]))
    if reduced is None:
        return None
    text = printed(reduced.piece, _comment(quantity, step, reduced, plan, target))
    function, arguments = loaded(text)
    again = measures[reduced.mesh_shape](function, arguments)
    return Witness(quantity, step, reduced, text, again)


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *leaves: jax.tree.leaves(function(*leaves))


def _comment(
    quantity: str, step: Measured, reduced: Reduced, plan: Plan, target: str | None
) -> str:
    mesh = ",".join(map(str, reduced.mesh_shape))
    return (
        f"The part of a step in which {quantity} deviates: {_sides(quantity, reduced.measured)}.\n"
        f"Of the whole step: {_sides(quantity, step)}.\n\n"
        f"kiwi deviation FILE.py:function --mesh {mesh} --profile {plan.profile} "
        f"--verify {target} --budget {UNLIMITED}"
    )


def _sides(quantity: str, measured: Measured) -> str:
    shown = format_seconds if quantity == TIME else format_bytes
    estimated, compiled = measured.sides(quantity)
    return f"{shown(estimated)} estimated, {shown(compiled)} compiled"
