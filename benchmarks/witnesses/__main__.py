"""Compiles the witnesses of all rules, records their outcomes, and writes the page of rules."""

import argparse

from benchmarks.witnesses.page import PAGE, page
from benchmarks.witnesses.records import recorded, saved
from kiwi.targets.registry import TARGETS


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--page", action="store_true", help="compile nothing, write the page")
    options = parser.parse_args()
    if not options.page:
        print(saved(recorded(options.targets)))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
