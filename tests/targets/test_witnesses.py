"""`pytest -m witness`: the rules that the installed compilers still follow, by name.

Each test compares a rule with the compiled modules of its witness. The example's module must show
the rule's claim, and the control's must not. One process compiles the witnesses of a target.
"""

import functools
import inspect
from collections.abc import Callable

import pytest

from kiwi.errors import CompilerUnavailableError, InvalidArgumentError
from kiwi.targets.registry import TARGETS
from kiwi.targets.rule import Rule
from kiwi.targets.target import Target
from kiwi.targets.witness import NotShown, Witness
from kiwi.targets.witnessed import Outcome, outcomes, witnessed_rules
from kiwi.xla.read.inspected import InspectedModule

PAIRS = [(target, rule) for target in TARGETS.values() for rule in witnessed_rules(target)]

NO_CODE = InspectedModule("", (), {}, (1,), ("x",))
"""A module that shows nothing."""


@pytest.fixture(scope="session")
def outcome_of(request: pytest.FixtureRequest) -> Callable[[Target, Rule], Outcome]:
    """Returns the outcome of a rule's witness. The first call compiles all selected witnesses."""
    selected = [item.name for item in request.session.items]

    @functools.cache
    def all_of(name: str) -> dict[str, Outcome]:
        target = TARGETS[name]
        names = [rule.name for rule in witnessed_rules(target)]
        wanted = [rule for rule in names if any(f"[{name}-{rule}]" in item for item in selected)]
        return dict(outcomes(target, wanted))

    def outcome(target: Target, rule: Rule) -> Outcome:
        try:
            return all_of(target.name)[rule.name]
        except CompilerUnavailableError as error:
            pytest.skip(error.what)

    return outcome


@pytest.mark.witness
@pytest.mark.parametrize(
    ("target", "rule"), PAIRS, ids=[f"{target.name}-{rule.name}" for target, rule in PAIRS]
)
def test_the_compiler_follows_the_rule(
    target: Target, rule: Rule, outcome_of: Callable[[Target, Rule], Outcome]
):
    found = outcome_of(target, rule)
    assert isinstance(rule.witness, Witness)
    where = inspect.getsourcefile(rule.witness.shows)
    claim = f"{rule.name} ({where})\nclaims: {rule.does}\nits witness: {rule.witness.says}"
    assert found.holds, f"{claim}\nThe compiled module shows instead:\n{found.found}"
    assert found.is_refused, f"{claim}\nThe control shows it, too:\n{found.found_of_control}"


@pytest.mark.parametrize(
    "rule", {rule.name: rule for _, rule in PAIRS}.values(), ids=lambda rule: rule.name
)
def test_no_witness_is_shown_by_nothing(rule: Rule):
    assert isinstance(rule.witness, Witness)
    try:
        is_shown = rule.witness.shows(NO_CODE)
    except (KeyError, IndexError, ValueError):
        is_shown = False
    assert not is_shown, rule.name


def test_every_rule_has_a_witness_or_says_why_not():
    for target in TARGETS.values():
        for rule in target.rules:
            if isinstance(rule.witness, NotShown):
                assert rule.witness.reason.endswith(".")
            else:
                assert rule.witness.says.endswith(".")
                assert rule.witness.example is not rule.witness.control


def test_a_rule_without_a_witness_is_refused_before_anything_is_compiled():
    target, rule = next(
        (target, rule)
        for target in TARGETS.values()
        for rule in target.rules
        if isinstance(rule.witness, NotShown)
    )
    with pytest.raises(InvalidArgumentError, match="no witness"):
        outcomes(target, [rule.name])
    with pytest.raises(InvalidArgumentError, match="There is no rule 'fusion'"):
        outcomes(target, ["fusion"])
