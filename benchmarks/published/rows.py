"""The rows of `steps.csv`: settings of published training steps, and their seconds.

Columns: `model`, `chip` (a profile), `chips` (with the devices in parentheses where a chip has
several), `mesh` (sizes of `data`, `fsdp` and `tp`; -1 takes the remaining devices),
`batch_per_device` and `sequence`, `residency` (the values that a layer keeps), `other`, `seconds`,
`source`, then the sizes of the decoder.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kiwi.mesh import hardware

GIVEN = Path(__file__).parent / "steps.csv"


@dataclass(frozen=True)
class PublishedStep:
    """One row of the file.

    - `axes`: the number of devices along "data", "fsdp" and "tp", in this order, without axes of
      one device.
    - `kept`: the names of the values that a layer keeps besides its input. "matmuls" are the
      results of all matmuls without batch dimensions.
    - `offloaded`: whether the kept values lie in host memory.
    """

    name: str
    chip: str
    devices: int
    axes: Mapping[str, int]
    batch_per_device: int
    sequence: int
    kept: frozenset[str]
    offloaded: bool
    other: str
    seconds: float
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    vocabulary: int
    mlp: str

    @property
    def key(self) -> str:
        """The name of the step in tables."""
        return f"{self.name} on {self.devices} {self.chip}"

    @property
    def batch(self) -> int:
        """The number of sequences of one step on all devices."""
        return self.batch_per_device * self.devices

    @property
    def on_tpus(self) -> bool:
        """Whether the devices are TPUs."""
        return hardware(self.chip).backend == "tpu"


def read(path: Path = GIVEN) -> Iterator[PublishedStep]:
    """Yields the rows of a file with the columns of `steps.csv`."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _step(row)


def _step(row: Mapping[str, str]) -> PublishedStep:
    chips, inside = re.match(r"(\d+)(?: \((.*)\))?", row["chips"]).groups()
    devices = re.search(r"(\d+) devices", inside or "")
    count = int(devices[1]) if devices else int(chips)
    sizes = ("layers", "width", "heads", "kv_heads", "head_width", "mlp_width", "vocabulary")
    return PublishedStep(
        name=row["model"],
        chip=row["chip"],
        devices=count,
        axes=_axes(row["mesh"], count),
        batch_per_device=int(row["batch_per_device"]),
        sequence=int(row["sequence"]),
        kept=_kept(row["residency"]),
        offloaded=row["residency"].startswith("offload"),
        other=row["other"],
        seconds=float(row["seconds"]),
        mlp=row["mlp"],
        **{name: int(row[name]) for name in sizes},
    )


def _axes(text: str, devices: int) -> Mapping[str, int]:
    given = {name: int(size) for name, size in re.findall(r"(\w+)=(-?\d+)", text)}
    left = devices // prod(size for size in given.values() if size > 0)
    sizes = {name: left if size < 0 else size for name, size in given.items()}
    return {name: sizes[name] for name in ("data", "fsdp", "tp") if sizes.get(name, 1) > 1}


def _kept(text: str) -> frozenset[str]:
    kept = set()
    if "matmul results" in text:
        kept.add("matmuls")
    if "flash output" in text:
        kept.add("context")
    named = re.match(r"(?:offload|keep) ([a-z,]+)(?:;|$)", text)
    if named and "matmul" not in text:
        kept |= set(named[1].split(","))
    return frozenset(kept)
