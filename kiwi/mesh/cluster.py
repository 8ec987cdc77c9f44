"""Latency and bandwidth of every pair of devices in a cluster, and their file format.

A file is JSON:

    {"format": "kiwi-cluster", "version": 1,
     "devices": ["gpu 0", "gpu 1"],
     "latency_seconds": [[0, 3e-6], [3e-6, 0]],
     "bandwidth_bytes_per_second": [[0, 2e11], [2e11, 0]]}

Row i, column j is measured while device i sends to device j and no other device sends. The diagonal
is not read. Further keys, such as a "source", are ignored.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kiwi.errors import ClusterError
from kiwi.json_file import FileFormat

FORMAT = FileFormat(
    "kiwi-cluster",
    1,
    "cluster",
    ClusterError,
    ending="}",
    again="`kiwi cluster --out FILE.json` writes one.",
)

_MATRICES = ("latency_seconds", "bandwidth_bytes_per_second")


@dataclass(frozen=True, eq=False)
class Cluster:
    """Latency and bandwidth between every two of n devices.

    - `devices`: a name for each.
    - `latency_seconds`, `bandwidth_bytes_per_second`: arrays of shape [n, n]; change neither.

    **Raises:** `ClusterError` if there is no device, an array has another shape, a bandwidth is
    not positive, a latency is negative, or either is not finite.
    """

    devices: tuple[str, ...]
    latency_seconds: np.ndarray
    bandwidth_bytes_per_second: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.devices)
        if not count:
            raise ClusterError("A cluster needs at least one device.")
        for name in _MATRICES:
            matrix = np.array(getattr(self, name), dtype=float)
            if matrix.shape != (count, count):
                raise ClusterError(
                    f"{name} has shape {matrix.shape} for {count} devices.",
                    suggestion="One row and one column per device.",
                )
            between = matrix[~np.eye(count, dtype=bool)]
            least = 0.0 if name == "latency_seconds" else np.finfo(float).tiny
            if not np.all(np.isfinite(between) & (between >= least)):
                raise ClusterError(
                    f"{name} has entries that no connection can have.",
                    cause="A pair was not measured, or its measurement failed.",
                    suggestion="Measure again; latencies from 0, bandwidths above 0.",
                )
            matrix.setflags(write=False)
            object.__setattr__(self, name, matrix)

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.devices)

    def save(self, path: str | Path) -> None:
        """Writes the cluster's file; raises `ClusterError` if it cannot be written."""
        matrices = {name: getattr(self, name).tolist() for name in _MATRICES}
        header = {"format": FORMAT.name, "version": FORMAT.version, "devices": self.devices}
        FORMAT.write(f"{json.dumps(header | matrices, indent=1)}\n".encode(), path)

    @classmethod
    def load(cls, path: str | Path) -> "Cluster":
        """Reads a cluster's file; raises `ClusterError` if it cannot be read, is of another format
        or a later version, or does not describe a cluster."""
        document = FORMAT.read(path)
        parts = ("devices", *_MATRICES)
        missing = [key for key in parts if not isinstance(document.get(key), list)]
        if missing:
            raise FORMAT.invalid(str(path), f"It has no {missing[0]}.")
        try:
            matrices = [np.array(document[name], dtype=float) for name in _MATRICES]
        except (TypeError, ValueError) as error:
            raise ClusterError(
                f"{path} has a matrix that is not one of numbers.",
                cause="Rows of different lengths, or something that is no number.",
            ) from error
        return cls(tuple(map(str, document["devices"])), *matrices)
