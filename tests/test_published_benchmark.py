"""The benchmark of published steps: its rows, and one step in a small size."""

from dataclasses import replace

import pytest

from benchmarks.published.models import Decoder, parameter_count
from benchmarks.published.price import priced
from benchmarks.published.rows import GIVEN, PublishedStep, read

ROWS = {step.key: step for step in read()}

SIZES = {
    "8b": 8.03e9,
    "70b": 70.6e9,
    "405b": 405.9e9,
    "175b": 175.2e9,
    "7b": 6.74e9,
    "8x7b": 46.7e9,
}


def test_every_row_is_read():
    assert len(ROWS) == len(GIVEN.read_text().splitlines()) - 1
    assert ROWS["maxtext-128b-2023 on 128 v5p"].axes == {"fsdp": 16, "tp": 8}
    assert ROWS["llama2-7b on 1024 v5e"].axes == {"data": 4, "fsdp": 256}
    assert ROWS["llama3.1-70b on 128 tpu7x"].kept == {"in", "context", "q", "k", "v"}
    assert ROWS["llama2-7b on 8 h100-sxm"].kept == {"matmuls", "context"}


@pytest.mark.parametrize("step", ROWS.values(), ids=ROWS)
def test_models_have_the_published_number_of_parameters(step: PublishedStep):
    size = step.name.removesuffix("-2023").rpartition("-")[2]
    wanted = SIZES.get(size, float(size.removesuffix("b")) * 1e9 if "x" not in size else 0.0)
    assert parameter_count(Decoder.of(step)) == pytest.approx(wanted, rel=0.06)


def test_a_small_step_is_priced_as_it_was_run_and_planned_no_slower():
    small = replace(
        ROWS["llama2-7b on 8 h100-sxm"],
        layers=2,
        width=512,
        heads=4,
        kv_heads=4,
        mlp_width=1024,
        vocabulary=1024,
        sequence=512,
    )
    row = priced(small, "quick")
    assert 0 < row["free_seconds"] <= row["predicted_seconds"]
    assert row["simplified"] == ["layers are scanned"]
    assert row["exposed_seconds"] <= row["communication_seconds"]
