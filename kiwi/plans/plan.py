"""`kiwi.Plan`, the result of `kiwi.plan`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiwi.plans.document import document, timings_document
from kiwi.plans.explain import explain, what_if
from kiwi.plans.export.checkpoint_names import checkpoint_names
from kiwi.plans.export.checkpoint_policy import checkpoint_policy
from kiwi.plans.export.partition_specs import logical_rules, partition_specs
from kiwi.plans.file import write
from kiwi.plans.record import PlanRecord
from kiwi.plans.report_data import report_data
from kiwi.plans.summary import summary
from kiwi.plans.user_shardings import without_user_shardings
from kiwi.report import write_report
from kiwi.report.notebook import fragment, plot_memory


@dataclass(frozen=True, eq=False)
class Plan(PlanRecord):
    """How one training step runs on a mesh; see `kiwi.plan`.

    `kiwi.plans.record.PlanRecord` documents the attributes. A method that is a function of another
    module is documented there.
    """

    def save(self, path: str | Path) -> None:
        """Writes the plan to a file that `kiwi.load_plan` reads.

        The header contains the wall times of planning. Apart from these, equal plans give equal
        bytes.

        **Raises:** `PlanFileError` if the file cannot be written.
        """
        write(document(self), path, timings_document(self.timings))

    def write_report(self, path: str | Path) -> None:
        """Writes the HTML report, a single file for a browser.

        **Raises:** `InvalidArgumentError` if the file cannot be written.
        """
        write_report(path, report_data(document(self), self))

    def plot_memory(self, ax: Any = None) -> Any:
        """Draws the memory over the step with matplotlib (extra `report`) and returns the axes.

        - `ax`: the axes to draw on; by default new ones.
        """
        return plot_memory(report_data(document(self), self), ax)

    def _repr_html_(self) -> str:
        return fragment(report_data(document(self), self))

    explain = explain
    what_if = what_if
    without_user_shardings = without_user_shardings
    partition_specs = partition_specs
    logical_rules = logical_rules
    checkpoint_policy = checkpoint_policy
    checkpoint_names = checkpoint_names

    def __str__(self) -> str:
        return summary(self)

    def __repr__(self) -> str:
        return (
            f"<kiwi.Plan mesh={self.mesh.shape} budget={self.memory_budget_bytes} "
            f"peak={self.estimate.peak_bytes} step_seconds={self.estimate.step_seconds:.3g}>"
        )
