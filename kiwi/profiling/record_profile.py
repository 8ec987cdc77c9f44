"""`kiwi.record_profile`: measures on the attached devices what planning a function needs to know.

Which operators, in which local shapes, follows from tracing the function and from the sharding
strategies of its operators (`kiwi.profiling.survey`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiwi.api import PlannedFunction, jit
from kiwi.mesh import DeviceMesh, ProfileTable, hardware
from kiwi.xla.compilers import of_platform

if TYPE_CHECKING:
    from kiwi.profiling.recording import Progress


def record_profile(
    fun: Callable[..., Any] | PlannedFunction,
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
    # Planning with a table needs no recording code.
    from kiwi.profiling.recording import record
    from kiwi.profiling.survey import elementwise_points, operator_points

    planned = fun
    if not isinstance(fun, PlannedFunction):
        planned = jit(fun, mesh_shape=mesh_shape, verify=None)
    units = planned.traced(*args, **kwargs).units
    mesh = DeviceMesh.create(mesh_shape, hardware("cpu"))
    return record(
        [*elementwise_points(units), *operator_points(units, mesh)],
        mesh_shape,
        path=path,
        repetitions=repetitions,
        compiler_options=lambda platform: of_platform(platform).run_options,
        on_progress=on_progress,
    )
