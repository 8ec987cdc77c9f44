"""Merges several recordings of one machine: takes the median of each entry.

The speed of a shared machine changes over time. Short recordings that are spread over time
therefore describe it better, merged, than one long recording.
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
    """Returns the table with the median time of each entry that all tables have.

    **Raises:** `InvalidArgumentError` if there are no tables, or if they belong to different
    devices, versions or meshes.
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
    entries_by_key: dict[Hashable, list[Entry]] = {}
    for entries in recordings:
        for entry in entries:
            # The key is the entry without its times: what was measured.
            entries_by_key.setdefault(replace(entry, seconds=1.0, spread=0.0), []).append(entry)
    return tuple(
        replace(
            entries[0],
            seconds=median(e.seconds for e in entries),
            spread=median(e.spread for e in entries),
        )
        for entries in entries_by_key.values()
        if len(entries) == len(recordings)
    )
