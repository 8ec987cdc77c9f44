"""`kiwi.Plan`: what `kiwi.plan` returns."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from kiwi.plans.breakdown import CostBreakdown
from kiwi.plans.document import document
from kiwi.plans.explain import Explanation, explain
from kiwi.plans.export.checkpoint_policy import CheckpointPolicy, checkpoint_policy
from kiwi.plans.export.partition_specs import (
    LogicalRules,
    PartitionSpecs,
    logical_rules,
    partition_specs,
)
from kiwi.plans.file import write
from kiwi.plans.record import PlanRecord
from kiwi.plans.report_data import report_data
from kiwi.plans.summary import summary
from kiwi.plans.what_if import what_if
from kiwi.report import write_report
from kiwi.report.notebook import fragment
from kiwi.report.plot import plot_memory


@dataclass(frozen=True, eq=False)
class Plan(PlanRecord):
    """How one training step runs on a mesh; see `kiwi.plan`. Its attributes are those of
    `kiwi.plans.record.PlanRecord`."""

    @property
    def ledger(self) -> CostBreakdown:
        """The old name of `breakdown`."""
        warnings.warn(
            "plan.ledger is plan.breakdown now; the old name goes with the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.breakdown

    def save(self, path: str | Path) -> None:
        """Writes the plan to a file that `kiwi.load_plan` reads; equal plans give equal bytes.

        **Raises:** `PlanFileError` if the file cannot be written.
        """
        write(document(self), path)

    def write_report(self, path: str | Path) -> None:
        """Writes the HTML report: one file, to be opened in a browser.

        **Raises:** `InvalidArgumentError` if the file cannot be written.
        """
        write_report(path, report_data(document(self), self))

    def plot_memory(self, ax: Any = None) -> Any:
        """Draws memory over the step with matplotlib (extra `report`); returns the axes."""
        return plot_memory(report_data(document(self), self), ax)

    def _repr_html_(self) -> str:
        return fragment(report_data(document(self), self))

    def explain(
        self, operator: int | str, *, forced: int = 3, time_limit_seconds: float = 10.0
    ) -> Explanation:
        """Why an operator is done as it is; see `kiwi.plans.explain.explain`."""
        return explain(self, operator, forced=forced, time_limit_seconds=time_limit_seconds)

    def what_if(
        self,
        operator: int | str,
        *,
        sharding: jax.sharding.PartitionSpec | None = None,
        residency: str | None = None,
        time_limit_seconds: float | None = None,
        verify: str | None = None,
    ) -> "Plan":
        """The best plan in which an operator is done as told; see `kiwi.plans.what_if.what_if`."""
        return what_if(self, operator, sharding, residency, time_limit_seconds, verify)

    def partition_specs(self) -> PartitionSpecs:
        """The shardings for hand-written code; see `kiwi.plans.export.partition_specs`."""
        return partition_specs(self)

    def logical_rules(self, logical_axes: Any = None) -> LogicalRules:
        """The shardings as rules of logical axes; see `kiwi.plans.export.partition_specs`."""
        return logical_rules(self, logical_axes)

    def checkpoint_policy(
        self,
        loss: Callable[..., Any],
        *args: Any,
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
    ) -> CheckpointPolicy:
        """What is kept, for hand-written code; see `kiwi.plans.export.checkpoint_policy`."""
        return checkpoint_policy(self, loss, *args, argnums=argnums, has_aux=has_aux)

    def __str__(self) -> str:
        return summary(self)

    def __repr__(self) -> str:
        return (
            f"<kiwi.Plan mesh={self.mesh.shape} budget={self.memory_budget_bytes} "
            f"peak={self.estimate.peak_bytes} step_seconds={self.estimate.step_seconds:.3g}>"
        )
