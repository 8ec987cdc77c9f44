# `make demo` and `make test` need Python 3.11 or newer and nothing else: the first call creates
# .venv and installs into it, and a changed pyproject.toml installs again.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

# The first interpreter that runs and is new enough (a name on PATH may be an empty shim).
find_python = for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done
PYTHON ?= $(shell $(find_python))

FRAMEWORKS := maxtext tunix levanter
PYTHON312 ?= python3.12

.PHONY: help install demo test test-slow test-witnesses test-frameworks $(FRAMEWORKS:%=test-%) lint format types imports docs package pictures check clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## Create .venv and install into it

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; try: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once, a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## Plan a GPT training step for 8 GPUs and TPUs, and train under a plan
	$(BIN)/python examples/demo.py

# The solvers' loops are compiled once before, and not in every process of the tests.
warm_up = $(BIN)/python -c 'from kiwi.solver import warm_up; warm_up()' \
	& $(BIN)/python -c 'from kiwi.literature.remat import PLANNERS; PLANNERS["hiremate"].warm_up()'; wait

test: $(STAMP) ## Run the tests (WORKERS=2 processes)
	$(warm_up)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations=25

test-slow: $(STAMP) ## Run the tests that take minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

test-witnesses: $(STAMP) ## Name the rules of XLA that the installed jax breaks
	$(BIN)/python -m pytest -m witness

# The frameworks need Python 3.12 and versions of jax that exclude each other: each has an
# environment of its own. Its list pins what Kiwi's own requirements leave open.
test-frameworks: $(FRAMEWORKS:%=test-%) ## Run the tests against MaxText, Tunix and Levanter (Python 3.12)

$(FRAMEWORKS:%=test-%): test-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest -m $* tests/frameworks/test_$*.py

.venv-%/.installed: tests/frameworks/requirements/%.txt pyproject.toml
	@test -x .venv-$*/bin/python || $(PYTHON312) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --no-deps --requirement $<
	.venv-$*/bin/python -m pip install --quiet --constraint $< --editable '.[aot-tpu]' flax pytest hypothesis
	@touch $@

lint: $(STAMP) ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## Mend style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## Check types
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP) ## Check which package may import which
	$(BIN)/lint-imports

docs: $(STAMP) ## Build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

package: $(STAMP) ## Build sdist and wheel, and try each in an empty environment (PYTHONS="python3.12 ...")
	$(BIN)/python -m benchmarks.packaging $(PYTHONS)

pictures: $(STAMP) ## Draw the pictures of docs/extend/architecture.md from the code
	$(BIN)/python -m benchmarks.structure

check: lint types imports test docs ## Everything that must pass before a commit is shared

clean: ## Remove .venv and caches
	rm -rf $(VENV) $(FRAMEWORKS:%=.venv-%) site .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
