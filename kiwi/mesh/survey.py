"""`kiwi.mesh.record_profile`: what planning a function needs to know of the attached devices.

Which operators, in which local shapes, follows from tracing the function and from the sharding
strategies of its operators. That is not for this package to know: it is told by a *survey*,
which `kiwi.api` registers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kiwi.mesh.profile_table import ProfileTable

if TYPE_CHECKING:
    from kiwi.mesh.recording import Point, Progress


@dataclass(frozen=True, eq=False)
class Needs:
    """What a survey found: points of one device, and options to compile them with, by platform."""

    points: Sequence["Point"]
    compiler_options: Callable[[str], Mapping[str, Any] | None]


class Survey(Protocol):
    """Finds out what planning `fun(*args, **kwargs)` on a mesh of `mesh_shape` needs."""

    def __call__(
        self,
        fun: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        mesh_shape: Sequence[int],
    ) -> Needs:
        """Raises the errors of tracing."""
        ...


_surveys: list[Survey] = []


def use_survey(survey: Survey) -> None:
    """Makes `record_profile` ask `survey`."""
    _surveys[:] = [survey]


def record_profile(
    fun: Callable[..., Any],
    *args: Any,
    mesh_shape: Sequence[int],
    path: str | Path | None = None,
    repetitions: int = 9,
    on_progress: "Callable[[Progress], None]" = lambda _: None,
    **kwargs: Any,
) -> ProfileTable:
    """Measures on the attached devices what planning `fun(*args, **kwargs)` needs to know.

    These are its matmuls, convolutions and reductions in the local shapes of all sharding
    strategies, its elementwise functions, memory traffic, launches, and collectives along each set
    of mesh axes; all devices of the mesh run each program at once. The table is good for
    `kiwi.plan(..., profile=table)` without these devices.

    **Arguments:**

    - `args`, `kwargs`: arrays or `jax.ShapeDtypeStruct`s; `fun` is traced and not run.
    - `mesh_shape`: no more devices than are attached. (1,) measures no collectives.
    - `path`: saves the table while it grows. If the file exists, what it has is not measured
      again, so that an interrupted recording is resumed.
    - `repetitions`: timings of each program, of which the median is kept.
    - `on_progress`: called before each measurement.

    **Raises:** `NotEnoughDevicesError`, `InvalidMeshError`, `InvalidArgumentError`;
    `ProfileFileError` if `path` cannot be written, or was recorded on other devices or by
    another jax; the errors of tracing.
    """
    # Replaying a table needs none of it.
    from kiwi.mesh.recording import record

    (survey,) = _surveys
    needs = survey(fun, args, kwargs, mesh_shape)
    return record(
        needs.points,
        mesh_shape,
        path=path,
        repetitions=repetitions,
        compiler_options=needs.compiler_options,
        on_progress=on_progress,
    )
