"""Profile tables: look-up with provenance, files, and refusals."""

import json
from dataclasses import replace

import pytest

from kiwi.errors import InvalidArgumentError, ProfileFileError
from kiwi.mesh import (
    CATALOGUE,
    CollectiveEntry,
    Environment,
    OperatorEntry,
    Price,
    ProfileTable,
    Provenance,
    hardware,
)

DOT = ("dot_general", "ij,jk->ik", "float32")


def dot(m, k, n, seconds):
    shapes = ((m, k), (k, n))
    return OperatorEntry(*DOT, shapes, 2.0 * m * k * n, 4 * (m * k + k * n + m * n), seconds, 0.02)


TABLE = ProfileTable(
    replace(hardware("cpu"), analytic=False, target_config="one chip"),
    (dot(64, 64, 64, 1e-4), dot(256, 64, 64, 4e-4)),
    (
        CollectiveEntry("all-gather", 4, "float32", 2**10, 1e-5, 0.1),
        CollectiveEntry("all-gather", 4, "float32", 2**14, 4e-5, 0.1),
    ),
    Environment("a processor", "0.10.2", "none", "2026-11-21"),
    ("dot_general ((65536, 65536),): out of memory",),
)


def operator(m, k, n, roofline_seconds=1.0, variant=DOT[1]):
    return TABLE.operator(DOT[0], variant, DOT[2], ((m, k), (k, n)), roofline_seconds)


def gather(size_bytes, devices=4):
    return TABLE.collective("all-gather", (0,), (devices,), size_bytes, 7.0)


def test_what_was_measured_is_returned_as_it_is():
    assert operator(64, 64, 64) == Price(1e-4, Provenance.MEASURED)
    assert gather(2**14) == Price(4e-5, Provenance.MEASURED)


def test_between_two_measurements_logarithms_are_linear():
    # The geometric middle of 64 and 256 takes that of 1e-4 and 4e-4.
    found = operator(128, 64, 64)
    assert found.provenance is Provenance.INTERPOLATED
    assert found.seconds == pytest.approx(2e-4)
    assert gather(2**12).seconds == pytest.approx(2e-5)
    assert gather(2**12).provenance is Provenance.INTERPOLATED


def test_outside_the_roofline_is_scaled_by_the_nearest():
    entry = TABLE.operators[1]
    own = TABLE.roofline("float32", entry.flops, entry.bytes)
    found = operator(512, 64, 64, roofline_seconds=5 * own)
    assert found.provenance is Provenance.EXTRAPOLATED
    assert found.seconds == pytest.approx(5 * 4e-4)
    link = TABLE.hardware.intra_link
    # A ring of four: three hops, three quarters of the bytes over each.
    large, small = (
        3 * link.latency_seconds + 3 / 4 * b / link.sustained_bytes_per_second
        for b in (2**20, 2**14)
    )
    assert gather(2**20).seconds == pytest.approx(4e-5 * large / small)
    assert gather(2**20).provenance is Provenance.EXTRAPOLATED


def test_prices_of_a_compilers_table_are_called_so():
    stated = replace(TABLE, environment=replace(TABLE.environment, compiler="libtpu 0"))
    for size in (64, 128, 8192):  # known, between two, and beyond
        shapes = ((size, 64), (64, 64))
        before, after = (t.operator(*DOT, shapes, 1e-5) for t in (TABLE, stated))
        assert after == Price(before.seconds, Provenance.COMPILER)
    for size_bytes in (2**14, 2**12, 2**20):
        found = stated.collective("all-gather", (0,), (4,), size_bytes, 7.0)
        assert found == Price(gather(size_bytes).seconds, Provenance.COMPILER)
    assert stated.operator("sort", "", "float32", ((64,),), 0.5) == Price(0.5, Provenance.ANALYTIC)


def test_what_the_table_lacks_is_analytic_and_never_zero():
    assert operator(64, 64, 64, 0.5, variant="ij,kj->ik") == Price(0.5, Provenance.ANALYTIC)
    assert gather(2**12, devices=8) == Price(7.0, Provenance.ANALYTIC)
    assert gather(0).seconds > 0


@pytest.mark.parametrize("table", [TABLE, *map(ProfileTable, CATALOGUE.values())])
def test_a_file_holds_the_whole_table(tmp_path, table):
    table.save(tmp_path / "table.json")
    assert ProfileTable.load(tmp_path / "table.json") == table


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("operators", "seconds", -1.0, r"operators\[0\].*cannot take -1.0 seconds"),
        ("operators", "seconds", 0.0, "cannot take 0.0 seconds"),
        ("operators", "seconds", None, r"operators\[0\].seconds is None, not a finite number"),
        ("operators", "seconds", ..., r"operators\[0\].seconds is missing"),
        ("operators", "shapes", [[64, 0], [0, 64]], "empty shapes"),
        ("operators", "shapes", "64", r"operators\[0\].shapes is '64', not a list"),
        ("operators", "flops", -2.0, "neither computes nor moves"),
        ("collectives", "seconds", ..., r"collectives\[0\].seconds is missing"),
        ("collectives", "kind", "all-hands", "not a collective"),
        ("collectives", "devices", 1, "moves nothing"),
        ("collectives", "bytes", 2**14, "Two entries measure the same"),
        ("collectives", "spread", -0.1, "cannot have a spread of -0.1"),
        ("collectives", "surprise", 1, r"collectives\[0\] has unknown keys: surprise"),
    ],
)
def test_impossible_entries_are_refused(tmp_path, section, key, value, message):
    path = tmp_path / "table.json"
    TABLE.save(path)
    content = json.loads(path.read_text())
    entry = content[section][0]
    if value is ...:
        del entry[key]
    else:
        entry[key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileFileError) as caught:
        ProfileTable.load(path)
    assert caught.match(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 4}, "version 4 of the profile format; this Kiwi reads up to 3"),
        ({"version": "1"}, "its version is '1'"),
        ({"format": "kiwi-plan"}, "not a profile of Kiwi"),
        ({"operators": {}}, "operators is {}, not a list"),
        ({"environment": None}, "no environment"),
        ({"hardware": []}, r"hardware is \[\], not an object"),
        ({"skipped": [3]}, r"skipped\[0\] is 3, not a text"),
    ],
)
def test_wrong_headers_and_sections_are_refused(tmp_path, change, message):
    path = tmp_path / "table.json"
    TABLE.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ProfileFileError, match=message):
        ProfileTable.load(path)


def test_files_cut_off_missing_or_unwritable(tmp_path):
    path = tmp_path / "table.json"
    TABLE.save(path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(ProfileFileError, match="is truncated"):
        ProfileTable.load(path)
    with pytest.raises(ProfileFileError, match="cannot be read"):
        ProfileTable.load(tmp_path / "none.json")
    with pytest.raises(ProfileFileError, match="cannot be written"):
        TABLE.save(tmp_path / "no folder" / "table.json")


def test_contradicting_entries_are_refused():
    with pytest.raises(InvalidArgumentError, match="Two entries measure the same"):
        replace(TABLE, operators=TABLE.operators + TABLE.operators[:1])
