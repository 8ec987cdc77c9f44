"""The contest's file format, read, written and refused, and the command line."""

import gzip
import json

import numpy as np
import pytest

from kiwi.errors import InvalidProblemError
from kiwi.solver import evaluate, solve
from kiwi.solver.__main__ import main
from kiwi.solver.contest import problem_from_contest, read_contest


def document() -> dict:
    """Returns a document of a problem with three nodes whose cheapest solution does not fit, see
    `test_costs_and_limit`."""
    return {
        "problem": {
            "name": "made up",
            "nodes": {
                "intervals": [[0, 4], [2, 6], [0, 0]],
                "costs": [[1, 2], [10, 20, 10**18], [0]],
                "usages": [[9, 3], [8, 2, 0], [5]],
            },
            "edges": {
                "nodes": [[0, 1], [2, 1]],
                "costs": [[0, 1, 2, 3, 4, 5], [10**18, 7, 7]],
            },
            "usage_limit": 10,
        }
    }


def test_costs_and_limit() -> None:
    problem = problem_from_contest(document())
    priced = evaluate(problem, (1, 1, 0))
    assert (priced.cost, priced.peak_bytes, priced.feasible) == (2 + 20 + 4 + 7, 5, True)
    assert not evaluate(problem, (0, 0, 0)).feasible
    assert np.isinf(problem.nodes[1].costs[2]) and np.isinf(problem.edges[1].costs[0, 0])
    assert solve(problem).solution == (1, 1, 0)


def test_a_cost_beyond_floating_point_is_forbidden() -> None:
    large = document()
    large["problem"]["nodes"]["costs"][1][2] = 10**400
    assert np.isinf(problem_from_contest(large).nodes[1].costs[2])


@pytest.mark.parametrize("name", ["instance.json", "instance.json.gz"])
def test_files_are_read_compressed_or_not(tmp_path, name: str) -> None:
    raw = json.dumps(document()).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert solve(read_contest(tmp_path / name)).solution == (1, 1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("nodes"), "no dict named 'nodes'"),
        (lambda p: p.pop("usage_limit"), "no int named 'usage_limit'"),
        (lambda p: p["nodes"]["costs"].pop(), "3 intervals, 2 costs and 3 usages"),
        (lambda p: p["nodes"]["intervals"].__setitem__(0, [1]), r"the interval \[1\]"),
        (lambda p: p["nodes"]["intervals"].__setitem__(0, [5, 1]), r"\[5, 1\) is not"),
        (lambda p: p["nodes"]["costs"].__setitem__(0, ["x"]), "costs \\['x'\\]"),
        (lambda p: p["nodes"]["costs"].__setitem__(2, []), "costs \\[\\]"),
        (lambda p: p["nodes"]["costs"].__setitem__(2, [-(10**400)]), "cost -1e.300, too large"),
        (lambda p: p["nodes"]["usages"].__setitem__(2, [2**70]), "bytes together"),
        (lambda p: p["nodes"]["usages"].__setitem__(2, [-5]), "holds -5 bytes"),
        (lambda p: p["edges"]["nodes"].__setitem__(0, [0, 7]), "between nodes \\[0, 7\\] of 3"),
        (lambda p: p["edges"]["costs"].__setitem__(0, [1, 2]), "not 2 x 3 numbers"),
        (lambda p: p["edges"]["costs"].pop(), "2 pairs but 1 tables"),
        (lambda p: p.__setitem__("usage_limit", -3), "limit is -3"),
    ],
)
def test_malformed_documents_are_refused(change, message: str) -> None:
    broken = document()
    change(broken["problem"])
    with pytest.raises(InvalidProblemError, match=message):
        problem_from_contest(broken)


@pytest.mark.parametrize("text", [b"", b"{", b"[1, 2]", b'{"problem": 3}', b"\xff\xfe"])
def test_files_that_are_no_instance(tmp_path, text: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    with pytest.raises(InvalidProblemError):
        read_contest(path)
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}" * 500)[:20])
    with pytest.raises(InvalidProblemError, match="cannot be read"):
        read_contest(tmp_path / "cut.json.gz")
    with pytest.raises(InvalidProblemError, match="missing"):
        read_contest(tmp_path / "nowhere.json")


def test_command_line_writes_the_solution(tmp_path, capsys) -> None:
    instance, out = tmp_path / "instance.json", tmp_path / "solution.json"
    instance.write_text(json.dumps(document()))
    assert main([str(instance), "--time-limit", "1e9", "--seed", "1", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["solution"] == [1, 1, 0]
    assert (written["objective"], written["peak"], written["status"]) == (33.0, 5, "optimal")
    assert written["bound"] == pytest.approx(33.0)
    assert "optimal: cost 33.0" in capsys.readouterr().out


def test_command_line_with_an_infeasible_limit(tmp_path, capsys) -> None:
    impossible = document()
    impossible["problem"]["usage_limit"] = 4
    instance, out = tmp_path / "instance.json", tmp_path / "solution.json"
    instance.write_text(json.dumps(impossible))
    assert main([str(instance), "--time-limit", "1e9", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["solution"] is None
    assert "least peak found is 5 bytes" in capsys.readouterr().out


def test_command_line_with_a_bad_file(tmp_path, capsys) -> None:
    assert main([str(tmp_path / "nowhere.json")]) == 2
    assert "Likely cause" in capsys.readouterr().err
