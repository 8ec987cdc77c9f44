"""The README's first plan on a new machine, and the same plan in the next process.

python -m benchmarks.cold_start

Both runs have a process of their own and no cached plan. The first run also has no compiled loops:
numba's cache is a new folder. Processor seconds include all processes that have ended by then. The
time of compiling loops is the difference between the two rows' `all`. Writes `results.json` into
this folder.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.provenance import commit

_FOLDER = Path(__file__).parent
_README = _FOLDER.parents[1] / "README.md"
_PLAN = """
import json, os, sys, time
begun = time.perf_counter()

def seconds():
    return {"wall": time.perf_counter() - begun, "processor": sum(os.times()[:4])}

import jax, kiwi, kiwi.solver.solve
from train import make_args, train_step

def since(before):
    return {name: round(now - before[name], 2) for name, now in seconds().items()}

stages, warm_up = {"imports": since(dict.fromkeys(seconds(), 0.0))}, kiwi.solver.warm_up

def timed():
    before = seconds()
    warm_up()
    if "awaited loops" not in stages:
        stages["awaited loops"] = since(before)

sys.modules["kiwi.solver.solve"].warm_up = timed
before = seconds()
plan = kiwi.plan(
    train_step, *make_args(), mesh_shape=(2, 4), memory_budget="24MiB", donate_argnums=0
)
stages["plan, with these"] = since(before)
stages["all"] = since(dict.fromkeys(before, 0.0))
assert plan.fits
print(json.dumps(stages))
"""


def main() -> None:
    """Plans twice and writes the results."""
    with tempfile.TemporaryDirectory() as folder:
        (step,) = re.findall(
            r'^```python title="train.py"\n(.*?)^```$', _README.read_text(), _BLOCK
        )
        Path(folder, "train.py").write_text(step)
        rows = {name: _planned(folder) for name in ("new machine", "next process")}
    results = {"rows": rows, "commit": commit(), "cores": os.cpu_count()}
    results |= {"python": platform.python_version(), "machine": platform.machine()}
    (_FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


_BLOCK = re.MULTILINE | re.DOTALL


def _planned(folder: str) -> dict[str, Any]:
    """Returns the seconds of each stage of planning."""
    cache_settings = {"NUMBA_CACHE_DIR": str(Path(folder, "loops")), "KIWI_PLAN_CACHE": "off"}
    paths = os.pathsep.join((folder, str(_README.parent)))
    environment = {**os.environ, **cache_settings, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, "-c", _PLAN]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
