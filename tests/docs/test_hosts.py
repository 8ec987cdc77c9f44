"""The program for several hosts of `docs/start/running.md`, run by two processes."""

import os
import re
import socket
import subprocess
import sys

import pytest

from kiwi.cli.main import main
from tests.docs.pages import DOCS, ROOT, blocks

PAGE = DOCS / "start" / "running.md"
DEVICES_OF_A_HOST = 2


@pytest.mark.slow
def test_two_hosts_train_under_one_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for info, code in blocks(PAGE):
        title = re.search(r'title="([^"]+)"', info)
        if title is not None:
            (tmp_path / title[1]).write_text(code)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    options = "--mesh 2,2 --axis-names host,gpu --pin batch/*=host,- --donate 0 --verify none"
    assert main(["plan", "train.py:train_step", *options.split(), "--out", "pod.json"]) == 0
    assert len({loss for loss in losses(tmp_path)}) == 1


def losses(folder) -> list[str]:
    """The last loss of each process, whose page's program is told where the others are."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    program = (folder / "train_on_pod.py").read_text() + "\nprint(float(loss))\n"
    setup = (
        "import sys\n"
        f'jax.config.update("jax_num_cpu_devices", {DEVICES_OF_A_HOST})\n'
        'jax.config.update("jax_cpu_collectives_implementation", "gloo")\n'
        f'jax.distributed.initialize("{address}", 2, int(sys.argv[1]))'
    )
    own = folder / "own.py"
    own.write_text(program.replace("jax.distributed.initialize()", setup))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    processes = [
        subprocess.Popen(
            [sys.executable, str(own), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(2)
    ]
    try:
        answers = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], answers[0][1]
    return [printed.splitlines()[-1] for printed, _ in answers]
