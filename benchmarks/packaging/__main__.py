"""Builds, installs and tries the distribution; see `benchmarks.packaging`."""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

NEEDED = (
    "kiwi/py.typed",
    "kiwi/mesh/catalogue.toml",
    "kiwi/mesh/backends.toml",
    "kiwi/mesh/profiles/h100-sxm.json",
    "kiwi/report/assets/page.html",
    "kiwi/xla/gpu/target_configs/h100-sxm.txtpb",
)
"""Files of the wheel that are not modules."""

STEP = """
import jax
import jax.numpy as jnp

def step(w, x):
    value, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * gradient, value

def make_args():
    return jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32")
"""

JIT = """
import warnings
warnings.simplefilter("error")
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
import kiwi, train
run = kiwi.jit(train.step, mesh_shape=(2, 4), profile="cpu", verify="cpu", effort="quick")
arrays = [np.ones(a.shape, a.dtype) for a in train.make_args()]
planned, value = run(*arrays)
wanted, _ = jax.jit(train.step)(*arrays)
np.testing.assert_allclose(planned, wanted, rtol=1e-5)
print(jax.__version__, len(planned.addressable_shards))
"""

PLAN = ("plan", "train.py:step", "--mesh", "2,4", "--effort", "quick")
COMMANDS = (
    ("--version",),
    ("hardware",),
    (*PLAN, "--profile", "cpu", "--verify", "cpu", "--out", "plan.json", "--report", "plan.html"),
    (*PLAN, "--profile", "h100-sxm", "--verify", "none", "--out", "other.json"),
    ("explain", "plan.json", "--op", "dot_general"),
    ("verify", "plan.json", "train.py:step"),
    ("explain", "KIWI-M001"),
)


@dataclass(frozen=True)
class Tried:
    """The result of one environment: versions, and the error of the failed command or nothing."""

    distribution: str
    python: str
    jax: str
    error: str


def build(folder: Path) -> list[Path]:
    """Returns the sdist and the wheel, built in a separate environment."""
    builder = _environment(Path(sys.executable), folder / "builder")
    _run([builder, "-m", "pip", "install", "--quiet", "build"])
    _run([builder, "-m", "build", "--outdir", folder / "dist", ROOT])
    return sorted((folder / "dist").iterdir(), key=lambda path: path.suffix)


def missing(wheel: Path) -> list[str]:
    """Returns the files of `NEEDED` that a wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    return [name for name in NEEDED if name not in names]


def tried(distribution: Path, python: Path, folder: Path) -> Tried:
    """Installs a distribution into an empty environment, and uses it from an empty folder."""
    version = _run([python, "-c", "import platform; print(platform.python_version())"]).strip()
    output = ""
    try:
        environment_python = _environment(python, folder)
        _run([environment_python, "-m", "pip", "install", "--quiet", distribution])
        place = folder / "empty"
        place.mkdir()
        (place / "train.py").write_text(STEP)
        for command in COMMANDS:
            _run([environment_python.parent / "kiwi", *command], place)
        output = _run([environment_python, "-c", JIT], place).strip()
        error = ""
    except subprocess.CalledProcessError as failed:
        error = f"{' '.join(map(str, failed.cmd))[-120:]}: {failed.stderr.strip()[-500:]}"
    return Tried(distribution.name, version, output.split(" ")[0], error)


def _environment(python: Path, folder: Path) -> Path:
    """Returns the Python of a new, empty environment."""
    if python == Path(sys.executable):
        venv.create(folder, with_pip=True, clear=True)
    else:
        _run([python, "-m", "venv", folder])
    return folder / "bin" / "python"


def _run(command: Sequence[str | Path], place: Path | None = None) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "KIWI_PLAN_CACHE": "off"}
    return subprocess.run(
        list(map(str, command)),
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the distributions, prints the results, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packaging")
    parser.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parsed = parser.parse_args(arguments)
    pythons = parsed.pythons or [Path(sys.executable)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    with tempfile.TemporaryDirectory(prefix="kiwi-packaging-") as name:
        folder = Path(name)
        sdist, wheel = build(folder)
        absent = missing(wheel)
        pairs = [(sdist, pythons[0]), *((wheel, python) for python in pythons)]
        results = [tried(d, python, folder / f"try-{k}") for k, (d, python) in enumerate(pairs)]
    for result in results:
        state = result.error or "installs, plans and trains"
        print(f"{result.distribution}, Python {result.python}, jax {result.jax or '?'}: {state}")
    if absent:
        print(f"the wheel lacks {', '.join(absent)}")
    if parsed.out is not None:
        data = {
            "version": project["version"],
            "missing": absent,
            "tried": list(map(asdict, results)),
        }
        parsed.out.write_text(json.dumps(data, indent=1) + "\n")
    return int(bool(absent) or any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())
