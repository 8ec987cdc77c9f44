"""The environment of all tests: eight virtual CPU devices, repeatable random examples."""

import gc
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import jax
import numpy as np
import pytest

from kiwi.campaign import known_peaks
from kiwi.literature.remat import best, fastsa
from kiwi.mesh import Hardware
from kiwi.solver import effort
from kiwi.targets.rules.gpu import cublas_workspace

DEVICE_COUNT = 8
TESTS = Path(__file__).parent
ANNEALING = TESTS / "literature" / "remat"
CODE_AS_IT_WAS = "--xla_cpu_use_fusion_emitters=false"
"""XLA:CPU's older way from a fusion to LLVM's code, in a third of the newer one's time. What is
fused, its buffers (up to some scalars) and its collectives are the same. XLA of jax 0.11 lacks the
flag, and ends a process that sets it."""


def _use_virtual_cpu_devices() -> None:
    """Gives this process `DEVICE_COUNT` CPU devices, before any backend is created.

    The platform is set in the environment, because subprocesses should compute on the CPU too. The
    number of devices is set by configuration and *removed* from the environment: a subprocess
    chooses its own number, and jax refuses a number that is given in both places.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", flags).strip()
    own = CODE_AS_IT_WAS if jax.__version_info__ < (0, 11) else ""
    os.environ["XLA_FLAGS"] = f"{own} {flags}".strip()
    os.environ.pop("JAX_NUM_CPU_DEVICES", None)
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICE_COUNT)
    # Tests are of plans that are made.
    os.environ["KIWI_PLAN_CACHE"] = "off"
    # Most tests compile small steps and run them once. LLVM's optimisations are a third of the
    # time; programs, their buffers and collectives are settled before. Subprocesses have them.
    jax.config.update("jax_disable_most_optimizations", True)


_use_virtual_cpu_devices()

hypothesis.settings.register_profile("kiwi", derandomize=True, deadline=None)
hypothesis.settings.load_profile("kiwi")


def pytest_collection_finish() -> None:
    """Python's garbage collector leaves modules and tests alone, and runs less often: it took a
    tenth of the time, for graphs that are never garbage while a test runs."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write the recorded outputs (goldens/) anew instead of comparing with them",
    )


@pytest.fixture(scope="session", autouse=True)
def cublas_is_lent_nothing() -> Iterator[Callable[[Hardware], int]]:
    """Removes cuBLAS's workspace from predictions: the steps of tests take KiB, and 32 MiB would
    hide them. Yields the original function."""
    lent_bytes = cublas_workspace.lent_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cublas_workspace, "lent_bytes", lambda _: 0)
        yield lent_bytes


@pytest.fixture(scope="module", autouse=True)
def _short_annealing(request: pytest.FixtureRequest) -> Iterator[None]:
    """A search without an answer asks "two-pass", which anneals schedules for as long as the time
    limit plans: far longer than the steps of tests need. Tests of annealing itself have it all."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent != ANNEALING:
            patch.setattr(fastsa, "NOMINAL_MOVES_PER_SECOND", 20_000)
            patch.setattr(best, "MOVES_PER_OPERATOR", 1_000)
        yield


@pytest.fixture(scope="module", autouse=True)
def _small_efforts(request: pytest.FixtureRequest) -> Iterator[None]:
    """A third of the work of a user's search, which the steps of tests seldom need. Tests of
    solvers, and those of recorded decisions, have it all."""
    with pytest.MonkeyPatch.context() as patch:
        within = request.path.relative_to(TESTS).parts
        if not {"solver", "literature", "test_same_decisions.py"} & {*within}:
            patch.setitem(effort.EFFORTS, "normal", 20.0)
            patch.setattr(effort, "LEAST_SECONDS", 1.5)
        yield


@pytest.fixture
def cublas_is_lent_its_workspace(
    cublas_is_lent_nothing: Callable[[Hardware], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restores cuBLAS's workspace, for tests of programs compiled for GPUs."""
    monkeypatch.setattr(cublas_workspace, "lent_bytes", cublas_is_lent_nothing)


@pytest.fixture(scope="session")
def mesh_devices() -> Callable[..., np.ndarray]:
    """`mesh_devices(2, 4)` is an array of that shape of the first virtual devices."""

    def take(*shape: int) -> np.ndarray:
        return np.array(jax.devices()[: math.prod(shape)]).reshape(shape)

    return take


@pytest.fixture(scope="session")
def make_mesh(mesh_devices: Callable[..., np.ndarray]) -> Callable[..., jax.sharding.Mesh]:
    """`make_mesh(2, 4)` is a mesh of virtual devices with the automatic axes "x" and "y".

    (`jax.make_mesh` would give explicit axes, on which sharding constraints are refused.)
    """

    def make(*shape: int, axis_names: tuple[str, ...] = ("x", "y")) -> jax.sharding.Mesh:
        axis_types = (jax.sharding.AxisType.Auto,) * len(shape)
        return jax.sharding.Mesh(mesh_devices(*shape), axis_names[: len(shape)], axis_types)

    return make


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`check_golden("name.txt", text)` compares `text` with `goldens/name.txt` beside the test.

    With `--update-goldens` it writes the file instead.
    """
    folder = request.path.parent / "goldens"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-goldens"):
            _write(path, text)
        assert path.exists(), f"{path} is missing; write it with --update-goldens"
        assert text == path.read_text(encoding="utf-8")

    return check


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(autouse=True)
def _forgotten_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clears the known peaks, so that no error names the peak of another test's plan."""
    monkeypatch.setattr(known_peaks, "_least_bytes", {})
