"""Names that moved are found where they were, with a warning that tells the new place."""

import importlib

import pytest

import kiwi
from kiwi.deprecated import MOVED

NAMES = [(module, *names) for module, moved in MOVED.items() for names in moved.items()]


@pytest.mark.parametrize(("module", "name", "new"), NAMES, ids=[name for _, name, _ in NAMES])
def test_an_old_name_warns_and_is_the_new_one(module, name, new):
    place, _, attribute = new.rpartition(".")
    wanted = getattr(importlib.import_module(place), attribute)
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is {new} now"):
        assert getattr(importlib.import_module(module), name) is wanted


def test_a_name_that_never_was_is_still_an_error():
    with pytest.raises(AttributeError, match=r"module 'kiwi\.mesh' has no attribute 'nothing'"):
        kiwi.mesh.nothing  # type: ignore[attr-defined]  # noqa: B018
