"""`docs/reference/rules.md` agrees with the rules."""

from benchmarks.witnesses.page import PAGE, page
from benchmarks.witnesses.records import all_records
from kiwi.targets.registry import TARGETS


def test_the_page_is_up_to_date():
    """`python -m benchmarks.witnesses --page` writes it."""
    assert PAGE.read_text("utf-8") == page()


def test_every_rule_is_on_the_page():
    text = page()
    for target in TARGETS.values():
        for rule in target.rules:
            assert f"| `{rule.name}` |" in text


def test_records_are_of_rules_that_there_are():
    for record in all_records():
        for name, found in record.found.items():
            assert found.keys() <= {rule.name for rule in TARGETS[name].rules}, record.jax
