"""Kiwi's files: replaced once they are complete, or written in place if they are no regular
files."""

import json
import os
import subprocess
import sys
import threading

import pytest

from kiwi.errors import PlanFileError
from kiwi.json_file import FileFormat

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
