"""Options are declared once: every function that takes them names and documents all of them."""

import inspect
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import InvalidArgumentError
from kiwi.options import MOST_SECONDS, Options, OptionTypes, SearchOptions, Settings, flags

NAMES = [option.name for option in fields(Options)]


def test_type_checkers_are_told_the_names_and_types_of_all_options():
    assert get_type_hints(OptionTypes) == get_type_hints(Options)
    assert list(get_type_hints(OptionTypes)) == NAMES


@pytest.mark.parametrize("function", [kiwi.plan, kiwi.jit])
def test_signature_and_help_name_all_options(function):
    shown = inspect.signature(function).parameters
    for option in fields(Options):
        assert shown[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[option.name].default == option.default
        assert shown[option.name].annotation == option.type
        assert f"`{option.name}`" in function.__doc__


def test_only_plan_takes_keyword_arguments_of_the_function():
    rest = [
        [p.name for p in inspect.signature(f).parameters.values() if p.kind is p.VAR_KEYWORD]
        for f in (kiwi.plan, kiwi.jit)
    ]
    assert rest == [["kwargs"], []]
    with pytest.raises(TypeError, match="budget"):
        kiwi.jit(lambda x: x, budget="1GiB")  # type: ignore[call-overload]


def test_the_table_of_the_documentation_has_all_options():
    page = Path(__file__).parents[1] / "docs" / "reference" / "options.md"
    table = [
        line.split("|")[1] for line in page.read_text("utf-8").splitlines() if line[:3] == "| `"
    ]
    assert {name for name in NAMES if not any(f"`{name}`" in cell for cell in table)} == set()


def test_settings_take_the_options_of_the_search_over():
    options = Options(
        mesh_shape=(2, 4), memory_budget="1GiB", seed=7, gap=0.5, time_limit_seconds=9
    )
    settings = options.settings(options.table())
    assert all(getattr(settings, f.name) == getattr(options, f.name) for f in fields(SearchOptions))
    assert settings.mesh.shape == (2, 4) and settings.memory_budget_bytes == 2**30
    assert isinstance(settings, Settings) and isinstance(settings.time_limit_seconds, float)


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("while_trips", "25", 25),
        ("while_trips", "solve=40,train.py:12=7", {"solve": 40, "train.py:12": 7}),
        ("equal_layers", "no", False),
        ("equal_layers", "yes", True),
        ("respect_user_checkpoint", "yes", True),
        ("respect_user_shardings", "no", False),
        ("in_shardings", "x,-;;y+z", (P("x", None), None, P(("y", "z")))),
    ],
)
def test_the_command_line_reads_options_from_text(name, text, value):
    (flag,) = [flag for option, flag in flags() if option.name == name]
    assert flag.parse(text) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time_limit_seconds", "10 s"),
        ("time_limit_seconds", None),
        ("gap", "1%"),
        ("seed", 1.5),
        ("num_slices", "2"),
        ("topology", 8),
        ("effort", 3),
        ("solver", None),
        ("while_trips", {"solve": "ten"}),
        ("plan_cache", "no"),
        ("respect_user_checkpoint", "yes"),
        ("donate_argnums", "w"),
        ("static_argnames", (0,)),
        ("constraints", {"w": P("x")}),
        ("corrections", "plan.json"),
        ("on_progress", True),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(name: str, value):
    with pytest.raises(InvalidArgumentError, match=name) as caught:
        Options(**{name: value})
    assert name in caught.value.suggestion


def test_numbers_of_numpy_and_an_infinite_time_limit_are_taken():
    given: dict[str, Any] = {"seed": np.int64(3), "donate_argnums": [np.int32(0)]}
    options = Options(time_limit_seconds=math.inf, **given)
    assert options.time_limit_seconds == MOST_SECONDS
