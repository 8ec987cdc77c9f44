"""Names that moved in this release; the old ones warn, and go with the next release.

They are installed from here, at the top, so that the rooms below need not know where they went.
`kiwi.plan` is a function: Python imports no module from below it, and former ones have no alias.
"""

import importlib
import warnings
from typing import Any

MOVED = {
    "kiwi.mesh": {
        "can_scatter": "kiwi.xla.rules.partitioner.can_scatter",
        "Step": "kiwi.mesh.ReshardingStep",
        "measure_cluster": "kiwi.measure_cluster",
        "record_profile": "kiwi.record_profile",
        "target_config": "kiwi.xla.gpu.target_config.target_config",
    }
}
"""By module, the new place of each name that was there."""


def install() -> None:
    """Lets each module of `MOVED` find the names that were there."""
    for module, names in MOVED.items():
        importlib.import_module(module).__dict__["__getattr__"] = _finder(module, names)


def _finder(module: str, names: dict[str, str]) -> Any:
    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].rpartition(".")
        warnings.warn(
            f"{module}.{name} is {names[name]} now; the old name goes with the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(place), new)

    return find
