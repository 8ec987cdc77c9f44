"""A plan that several processes run gives the same losses as one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from examples import mlp
from tests.test_pipeline import train_step

CONFIG = mlp.MlpConfig(layers=1, width=16, batch=16)
OPTIONS = {"mesh_shape": (2, 4), "verify": None, "memory_budget": "1GB"}
STEPS = 3
PIPELINE = {"stages": 8, "microbatches": 4}
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("distributed_worker.py")


def train(step, state, batch) -> list[float]:
    losses = []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses


def pipelined_losses(step) -> list[float]:
    keys = jax.random.split(jax.random.key(1))
    w, x = jax.random.normal(keys[0], (8, 7, 7)) / 3, jax.random.normal(keys[1], (12, 7))
    losses = []
    for _ in range(STEPS):
        w, loss = step(w, x)
        losses.append(float(loss))
    return losses


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_processes(count: int, folder: Path) -> list[dict]:
    port = str(free_port())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(k), str(count), port, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for k in range(count)
    ]
    try:
        answers = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, answers, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(printed.splitlines()[-1]) for printed, _ in answers]


def test_two_processes_train_as_one(tmp_path):
    alone = train(
        jax.jit(mlp.make_train_step(CONFIG)), mlp.make_state(CONFIG), mlp.make_batch(CONFIG)
    )
    plain = pipelined_losses(jax.jit(train_step))
    for found in run_processes(2, tmp_path):
        np.testing.assert_allclose(found["pipelined"], plain, rtol=1e-5)
        np.testing.assert_allclose(found["own"], alone, rtol=1e-5)
        np.testing.assert_allclose(found["loaded"], alone, rtol=1e-5)
        assert found["different"] == "Processes 1 have another plan than process 0."
