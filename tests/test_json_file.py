"""Kiwi's files: replaced once they are complete, or written in place if they are no regular
files."""

import errno
import json
import os
import subprocess
import sys
import threading

import pytest

from kiwi.errors import InvalidArgumentError, PlanFileError
from kiwi.json_file import FileFormat, check_writable, write_text
from kiwi.system import limit_error

FORMAT = FileFormat("kiwi-test", 1, "test file", PlanFileError, "}", "Again.")
CONTENT = json.dumps({"format": "kiwi-test", "version": 1}).encode()
PROGRAM = """
import sys
from kiwi.errors import PlanFileError
from kiwi.json_file import FileFormat
print("before", flush=False)
form = FileFormat("kiwi-test", 1, "test file", PlanFileError, "}", "Again.")
form.write(b"content\\n", sys.argv[1])
print("after")
"""


def test_a_file_is_replaced_and_leaves_no_draft(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    FORMAT.write(CONTENT, path)
    assert path.read_bytes() == CONTENT and list(tmp_path.iterdir()) == [path]


def test_a_link_leads_to_the_file_that_is_replaced(tmp_path):
    path, link = tmp_path / "plan.json", tmp_path / "latest.json"
    link.symlink_to(path)
    FORMAT.write(CONTENT, link)
    assert link.is_symlink() and path.read_bytes() == CONTENT


def test_a_named_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    FORMAT.write(CONTENT, pipe)
    reader.join()
    assert found == [CONTENT] and pipe.is_fifo()


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_is_written_to_in_order(path: str, kind: str, tmp_path):
    command, target = [sys.executable, "-c", PROGRAM, path], tmp_path / "out"
    if kind == "pipe":
        text = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
    else:
        with open(target, "w") as file:
            subprocess.run(command, stdout=file, check=True)
        text = target.read_text()
    assert text == "before\ncontent\nafter\n"
    assert os.path.islink("/dev/stdout")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(PlanFileError, match="cannot be written"):
        FORMAT.write(CONTENT, tmp_path)


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EROFS, "mounted read-only"),
        (errno.EPERM, "permissions"),
        (errno.EIO, "operating system refuses"),
    ],
)
def test_the_cause_of_a_refusal_is_the_systems(number: int, cause: str, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.write_bytes", refused)
    with pytest.raises(PlanFileError, match=os.strerror(number)) as caught:
        FORMAT.write(CONTENT, tmp_path / "plan.json")
    assert cause in caught.value.cause and caught.value.suggestion
    with pytest.raises(InvalidArgumentError, match=os.strerror(number)):
        write_text("text", tmp_path / "plan.html")


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("none/plan.json", "does not exist"),
        ("file/plan.json", "is a file, and not a folder"),
        (".", "leads to a folder"),
        ("n" * 300, "no name of this length"),
    ],
)
def test_a_path_that_cannot_be_written_is_told_before(path: str, cause: str, tmp_path):
    (tmp_path / "file").touch()
    for refused in (check_writable, lambda target: write_text("text", target)):
        with pytest.raises(InvalidArgumentError, match="cannot be written") as caught:
            refused(tmp_path / path)
        assert cause in caught.value.cause


def test_limits_of_the_machine_are_told_from_faults():
    full = limit_error(OSError(errno.ENOSPC, "No space left on device", "/tmp/x"))
    assert full is not None and "/tmp/x" in full.what and "TMPDIR" in full.cause
    assert limit_error(FileNotFoundError(2, "No usable temporary directory found in []"))
    assert limit_error(MemoryError())
    assert limit_error(FileNotFoundError(2, "No such file")) is None
    assert limit_error(ValueError()) is None
