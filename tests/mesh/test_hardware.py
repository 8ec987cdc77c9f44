"""The hardware catalogue: look-up, rates by dtype, refusals."""

import pickle
from dataclasses import replace

import pytest

from kiwi.errors import InvalidArgumentError, UnknownProfileError
from kiwi.mesh import CATALOGUE, Link, hardware


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_is_complete(name):
    entry = hardware(name)
    assert entry.name == name
    assert entry.description
    assert entry.source
    assert entry.analytic
    assert hash(entry) == hash(pickle.loads(pickle.dumps(entry)))
    assert entry == pickle.loads(pickle.dumps(entry))
    # Leaving a node is never faster than staying in it.
    inside, outside = entry.intra_link, entry.inter_link
    assert outside.sustained_bytes_per_second <= inside.sustained_bytes_per_second
    assert outside.latency_seconds >= inside.latency_seconds


def test_newer_gpus_are_faster():
    names = ["v100-sxm2", "a100-sxm", "h100-sxm", "h200-sxm"]
    rates = [hardware(name).matmul_flops_per_second("float16") for name in names]
    bandwidths = [hardware(name).sustained_memory_bytes_per_second for name in names]
    sizes = [hardware(name).memory_bytes for name in names]
    assert rates == sorted(rates)
    assert bandwidths == sorted(bandwidths)
    assert sizes == sorted(sizes)


def test_data_sheet_figures():
    assert hardware("v100-sxm2").peak_flops_per_second("float16") == 125e12
    assert hardware("a100-sxm").memory_bandwidth_bytes_per_second == 2039e9
    assert hardware("h100-sxm").intra_link.bandwidth_bytes_per_second == 900e9 / 2
    assert hardware("h200-sxm").memory_bytes == 141 * 10**9
    assert hardware("v100-sxm2").inter_link.bandwidth_bytes_per_second == 32e9 / 8


def test_float32_matmul_is_tf32_where_there_is_tf32():
    a100, v100 = hardware("a100-sxm"), hardware("v100-sxm2")
    assert a100.peak_flops_per_second("float32") == 156e12
    assert a100.peak_flops_per_second("float32", matmul=False) == 19.5e12
    assert v100.peak_flops_per_second("float32") == 15.7e12


@pytest.mark.parametrize(
    ("dtype", "like"),
    [("bfloat16", "float32"), ("int32", "float32"), ("bool", "float32"), ("complex128", "float64")],
)
def test_missing_rates_fall_back(dtype, like):
    v100 = hardware("v100-sxm2")
    assert dtype not in v100.flops_per_second
    assert v100.peak_flops_per_second(dtype) == v100.peak_flops_per_second(like)


def test_general_units_compute_what_is_no_matmul():
    h100 = hardware("h100-sxm")
    assert h100.peak_flops_per_second("bfloat16", matmul=False) == 67e12
    assert h100.peak_flops_per_second("bfloat16") == 989.5e12


def test_efficiency_scales_the_matmul_rate():
    halved = replace(hardware("a100-sxm"), matmul_efficiency=0.5)
    assert halved.matmul_flops_per_second("bfloat16") == 156e12


def test_shared_links_split_bandwidth_but_not_latency():
    link = Link(8e9, 1e-6, efficiency=0.5)
    assert link.sustained_bytes_per_second == 4e9
    assert link.shared_by(4) == Link(2e9, 1e-6, efficiency=0.5)


def test_unknown_names_suggest_the_closest():
    with pytest.raises(UnknownProfileError, match="v100-sxm2, a100-sxm, h100-sxm") as caught:
        hardware("H100")
    assert caught.value.suggestion == "profile='h100-sxm'"
    with pytest.raises(UnknownProfileError, match="no hardware profile 'zzz'") as caught:
        hardware("zzz")
    assert caught.value.suggestion == "One of the known names."


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"flops_per_second": {"float64": 1.0}}, "no float32 rate"),
        ({"flops_per_second": {"float32": 1.0, "float64": 0.0}}, r"\['float64'\]=0.0 must be pos"),
        ({"memory_bytes": 0}, "memory_bytes=0 must be positive"),
        ({"memory_bandwidth_bytes_per_second": -1.0}, "must be positive"),
        ({"devices_per_node": 0}, "devices_per_node=0"),
        ({"matmul_efficiency": 1.5}, "matmul_efficiency=1.5 must be above 0 and at most 1"),
        ({"bandwidth_efficiency": 0.0}, "bandwidth_efficiency=0.0"),
    ],
)
def test_impossible_hardware_is_refused(change, what):
    with pytest.raises(InvalidArgumentError, match=what):
        replace(hardware("cpu"), **change)


@pytest.mark.parametrize(
    ("figures", "what"),
    [
        ((0.0, 1e-6), "bandwidth_bytes_per_second=0.0 must be positive"),
        ((float("nan"), 1e-6), "must be positive"),
        ((1e9, -1e-6), "latency_seconds=-1e-06 is negative"),
        ((1e9, 1e-6, 2.0), "efficiency=2.0"),
    ],
)
def test_impossible_links_are_refused(figures, what):
    with pytest.raises(InvalidArgumentError, match=what):
        Link(*figures)


def test_convolutions_have_an_efficiency_of_their_own_where_it_is_known():
    v5e, h100 = hardware("v5e"), hardware("h100-sxm")
    assert v5e.convolution_flops_per_second("float32") == v5e.matmul_flops_per_second("float32")
    expected = h100.convolution_efficiency * h100.flops_per_second["tf32"]
    assert h100.convolution_flops_per_second("float32") == expected
    assert expected < h100.matmul_flops_per_second("float32")
    with pytest.raises(InvalidArgumentError, match="convolution_efficiency"):
        replace(h100, convolution_efficiency=1.5)
