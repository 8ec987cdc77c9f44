"""Every program of `benchmarks.field` traces; some are planned with the numbers of `jax.jit`."""

import jax
import pytest

from benchmarks.field.numbers import compared, difference
from benchmarks.field.program import Program
from benchmarks.field.programs import PROGRAMS
from benchmarks.field.rows import Key, read_rows, write_rows
from benchmarks.field.table import EQUAL, markdown

MIB = 1 << 20
PLANNED = ("dlrm", "deeponet", "explicit_mesh")

everywhere = pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda p: p.name)


def traced(program: Program, small: bool) -> int:
    """Returns the bytes of the arguments. Checks that a donated state has the same types after the
    step."""
    step, _ = program.make(small)
    args = program.make_args(small)
    with program.context():
        results = jax.eval_shape(step, *args)
    taken, returned = (jax.tree.leaves(side[0]) for side in (args, results))
    if program.donated:
        assert [(x.shape, x.dtype) for x in taken] == [(x.shape, x.dtype) for x in returned]
    leaves = [x for x in jax.tree.leaves(args) if not x.dtype.name.startswith("key")]
    return sum(x.size * x.dtype.itemsize for x in leaves)


def test_there_are_enough_kinds():
    assert len(PROGRAMS) >= 40
    assert len({program.stands_for for program in PROGRAMS.values()}) == len(PROGRAMS)


@everywhere
def test_it_traces_at_both_sizes_and_fits(program):
    if program.profiles == ("h100-sxm",):
        pytest.skip("jax asks for cuDNN when it traces.")
    assert traced(program, small=True) < 16 * MIB
    assert traced(program, small=False) < 2048 * MIB


@pytest.mark.parametrize("name", PLANNED)
def test_planned_numbers_are_those_of_jit(name):
    with PROGRAMS[name].context():
        found = compared(name, None)
    assert "error" not in found
    assert found["difference"] < EQUAL


def test_a_difference_is_relative_to_the_wanted_values():
    wanted = {"a": jax.numpy.full((4,), 2.0), "b": jax.numpy.zeros((2,))}
    got = {"a": jax.numpy.full((4,), 2.2), "b": jax.numpy.zeros((2,))}
    assert difference(got, wanted) == pytest.approx(0.1)
    assert difference(wanted, wanted) == 0.0


def test_rows_are_read_as_they_were_written(tmp_path):
    key = Key("griffin", "h100-sxm", "60")
    assert Key.parse(str(key)) == key
    assert key.share == pytest.approx(0.6) and str(key.free) == "griffin h100-sxm free"
    rows = {
        str(key): {"error": "BudgetNotMetError", "what": "No plan.", "exit": 1, "cpu_seconds": 2.0},
        "griffin numbers free": {"difference": 1e-6, "exit": 0, "cpu_seconds": 1.0},
    }
    rows = {name: {**row, "jax": "0", "date": "d", "commit": "c"} for name, row in rows.items()}
    write_rows(tmp_path / "results.json", rows, "command")
    assert read_rows(tmp_path / "results.json") == rows
    table = markdown(rows, "command")
    assert "BudgetNotMetError" in table and "difference 1.0e-06" in table
