"""The garbage collector is paused, and restored to its former state."""

import gc

import pytest

from kiwi.hlo.garbage_collection import without_collection


@without_collection()
def _collects(*, fail: bool = False) -> bool:
    if fail:
        raise ValueError("failed")
    return gc.isenabled()


def test_collection_is_paused_while_the_function_runs() -> None:
    assert gc.isenabled()
    assert not _collects()
    assert gc.isenabled()


def test_collection_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="failed"):
        _collects(fail=True)
    assert gc.isenabled()


def test_what_the_caller_paused_stays_paused() -> None:
    gc.disable()
    try:
        assert not _collects()
        assert not gc.isenabled()
    finally:
        gc.enable()
