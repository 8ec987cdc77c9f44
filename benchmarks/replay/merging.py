"""Several recordings of one machine as one: the median of each entry.

A machine that others use as well is faster at one time than at another. Short recordings that are
spread over time, merged, say more than one long one.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

from kiwi.errors import InvalidArgumentError
from kiwi.mesh.profile_entries import CollectiveEntry, OperatorEntry
from kiwi.mesh.profile_table import ProfileTable

Entry = TypeVar("Entry", OperatorEntry, CollectiveEntry)


def median_table(tables: Sequence[ProfileTable]) -> ProfileTable:
    """The table whose times are the medians of those of `tables`, for what all of them have.

    **Raises:** `InvalidArgumentError` if there is none, or if they are of different devices,
    versions or meshes.
    """
    if not tables:
        raise InvalidArgumentError("There are no tables to merge.")
    first = tables[0]
    for other in tables[1:]:
        if _where(other) != _where(first):
            raise InvalidArgumentError(
                f"Tables of {_where(first)} and of {_where(other)} do not belong together."
            )
    return replace(
        first,
        hardware=replace(
            first.hardware,
            kernel_launch_seconds=median(t.hardware.kernel_launch_seconds for t in tables),
            memory_bandwidth_bytes_per_second=median(
                t.hardware.memory_bandwidth_bytes_per_second for t in tables
            ),
        ),
        operators=_medians([t.operators for t in tables]),
        collectives=_medians([t.collectives for t in tables]),
        skipped=tuple(dict.fromkeys(note for t in tables for note in t.skipped)),
    )


def _where(table: ProfileTable) -> tuple[object, ...]:
    environment = table.environment
    known = None if environment is None else replace(environment, date="")
    return table.hardware.name, known, table.mesh_shape


def _medians(recordings: Sequence[Sequence[Entry]]) -> tuple[Entry, ...]:
    found: dict[Hashable, list[Entry]] = {}
    for entries in recordings:
        for entry in entries:
            # All but the times is what was measured.
            found.setdefault(replace(entry, seconds=1.0, spread=0.0), []).append(entry)
    return tuple(
        replace(
            entries[0],
            seconds=median(e.seconds for e in entries),
            spread=median(e.spread for e in entries),
        )
        for entries in found.values()
        if len(entries) == len(recordings)
    )
