"""Predicted seconds with their provenance."""

import enum
from dataclasses import dataclass


class Provenance(enum.Enum):
    """Where a price comes from; see `kiwi.mesh.profile_table`."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    ANALYTIC = "analytic"


@dataclass(frozen=True)
class Price:
    """Predicted seconds, and where they come from."""

    seconds: float
    provenance: Provenance
