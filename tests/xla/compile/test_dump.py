"""XLA's output is read only once it is complete."""

import threading
from pathlib import Path

import pytest

from kiwi.errors import CompileCheckError
from kiwi.xla.compile.dump import Dump, dumped

NAME = "gpu_after_optimizations"
PROGRAM = f"module_0001.jit_step.sm_9.0a_{NAME}"
# Fields 1 and 3 of an HloProto, two bytes each.
MODULE, ASSIGNMENT = b"\x0a\x02mo", b"\x1a\x02as"


TEXT = "HloModule step\nENTRY %main {\n}\n\n"


def write(folder: Path, message: bytes, text: str = TEXT) -> None:
    (folder / f"{PROGRAM}.txt").write_text(text)
    (folder / f"{PROGRAM}.hlo.pb").write_bytes(message)


def test_the_rest_of_the_compilation_is_not_waited_for(tmp_path: Path):
    generated = threading.Event()

    def compiling() -> None:
        write(tmp_path, MODULE + ASSIGNMENT)
        generated.wait()

    try:
        assert dumped(compiling, str(tmp_path), NAME) == Dump(TEXT, b"mo", b"as")
    finally:
        generated.set()


@pytest.mark.parametrize("part", [MODULE, MODULE[:3], MODULE + ASSIGNMENT[:-1]])
def test_half_a_file_is_not_read(tmp_path: Path, part: bytes):
    with pytest.raises(CompileCheckError, match="did not write the program"):
        dumped(lambda: write(tmp_path, part), str(tmp_path), NAME)


@pytest.mark.parametrize("part", ["", TEXT[:-4]])
def test_half_a_text_is_not_read(tmp_path: Path, part: str):
    """XLA:GPU of jax 0.11 may still be writing it when the messages are there."""
    with pytest.raises(CompileCheckError, match="did not write the program"):
        dumped(lambda: write(tmp_path, MODULE + ASSIGNMENT, part), str(tmp_path), NAME)


def test_what_compiling_raises_is_raised(tmp_path: Path):
    def compiling() -> None:
        raise ValueError("UNIMPLEMENTED")

    with pytest.raises(ValueError, match="UNIMPLEMENTED"):
        dumped(compiling, str(tmp_path), NAME)


def test_code_that_fails_after_the_program_is_there_does_not_matter(tmp_path: Path):
    def compiling() -> None:
        write(tmp_path, MODULE + ASSIGNMENT)
        raise ValueError("ptxas too old")

    assert dumped(compiling, str(tmp_path), NAME).module == b"mo"
