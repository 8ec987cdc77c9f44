"""An installation from PyPI works outside of a checkout."""

import tomllib

import pytest

from benchmarks.packaging.__main__ import NEEDED, ROOT, main
from kiwi.version import VERSION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_version_stands_in_one_place_more_only():
    assert PROJECT["version"] == VERSION


def test_every_python_that_is_classified_is_allowed():
    versions = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_files_that_the_wheel_needs_are_there():
    assert [name for name in NEEDED if not (ROOT / name).is_file()] == []


@pytest.mark.slow
def test_sdist_and_wheel_work_in_an_empty_environment():
    assert main([]) == 0
