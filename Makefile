# `make run` and `make test` are all that a newcomer needs; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first Python that is new enough; name another with `make run PYTHON=/opt/python3.13`.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(or $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done),python3)
endif
VENV := .venv
BIN := $(VENV)/bin
SCENARIOS ?= scenarios/
ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run test lint bench test-kernel test-long clean
help:  ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

run: $(VENV)/.ready  ## Run the scenarios on this machine (SCENARIOS=file-or-folder, ARGS=flags)
	@$(BIN)/python -m dmabuf_mp run $(ARGS) $(SCENARIOS)

test: $(VENV)/.ready-dev  ## Run the tests (ARGS=flags of pytest)
	@command -v $${CC:-gcc} >/dev/null || \
	  { echo "make: the tests build small C programs: apt-get install gcc libc6-dev" >&2; exit 1; }
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.ready-dev  ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/.ready-dev  ## Measure: each figure beside what it is compared with
	@status=0; for program in benchmarks/*.py; do $(BIN)/python $$program || status=1; done; exit $$status

test-kernel: $(VENV)/.ready-dev  ## Boot kernels that have dma-bufs, under emulation, and test in them
	@$(BIN)/python tests/kernel/run.py $(ARGS)
	@$(BIN)/python -m pytest -q -m kernel tests/kernel

test-long: $(VENV)/.ready-dev  ## Test the tests: every fault, mutants, kills at random, much fuzz: two hours
	@$(BIN)/python -m dmabuf_mp selftest --every-phase
	@$(BIN)/python -m tests.mutants.run
	@$(BIN)/python -m tests.long.kill
	@DMABUF_MP_FUZZ=100000 $(BIN)/python -m pytest tests/test_sizes.py tests/test_wire.py tests/scenario/test_fuzz.py

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/*/build
	find . -name __pycache__ -prune -exec rm -rf {} +

# An environment whose making was interrupted carries the mark of it, and is made anew.
define begin
@if [ -e $(VENV)/.unfinished ] || ! $(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null \
    || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
  $(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "make: Python 3.11 or later is needed, and $(PYTHON) is" \
    "'$$($(PYTHON) --version 2>&1 | head -n 1)'; name another: make PYTHON=python3.12" >&2; exit 1; }; \
  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
    || { echo "make: Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }; \
  echo "make: making $(VENV)" >&2; $(PYTHON) -m venv --clear $(VENV); \
fi
@touch $(VENV)/.unfinished
endef

$(VENV)/.ready: pyproject.toml
	$(begin)
	@echo "make: installing the package and what it needs into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --editable .
	@mv $(VENV)/.unfinished $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@touch $(VENV)/.unfinished
	@echo "make: installing what the tests need into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet 'pip>=25.1'  # the first that knows --group
	@$(BIN)/python -m pip install --quiet --group dev
	@mv $(VENV)/.unfinished $@
