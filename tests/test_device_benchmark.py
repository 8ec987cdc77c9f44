"""The device benchmark without a GPU, and its parts on CPU devices."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from benchmarks.device import variants
from benchmarks.device.timing import measure
from examples import gpt

ROOT = Path(__file__).parents[1]
TINY = replace(gpt.SIZES["tiny"], layers=1)


def test_without_a_gpu_it_says_so_and_exits_with_0(tmp_path: Path):
    out = tmp_path / "device.json"
    command = [sys.executable, "-m", "benchmarks.device", f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "No NVIDIA GPU is attached: nothing is measured."
    assert not out.exists()


def test_the_batch_grows_until_the_card_is_full(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(variants, "BASE", TINY)
    peaks = [variants._predicted_peak(batch, "h100-sxm") for batch in (4, 8)]
    assert peaks[0] < peaks[1]
    assert variants.filling_batch(peaks[1] - 1, "h100-sxm") == 4
    assert variants.filling_batch(peaks[1], "h100-sxm") == 8
    assert variants.filling_batch(10**15, "h100-sxm", most=16) == 16


def test_every_variant_runs_and_is_measured():
    found = [make() for make in variants.variants(TINY, "h100-sxm", [1.0], 2.0)]
    assert [v.name for v in found] == [
        "as written",
        "jax.checkpoint full",
        "jax.checkpoint dots",
        "jax.checkpoint dots_no_batch",
        "planned 100%",
    ]
    for variant in (found[0], found[-1]):
        leaves = jax.tree.leaves((gpt.make_state(TINY), gpt.make_batch(TINY)))
        measured = measure(variant, leaves, runs=3, warm_up=1)
        assert 0 < measured.fastest_seconds <= measured.median_seconds <= measured.slowest_seconds
        assert measured.runs == 3
        assert variant.predicted_peak_bytes and variant.compiled_peak_bytes
