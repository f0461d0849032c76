# One word each: make demo | test | check | sim | crash | verify | bench | docs | format | lock | clean
# Needs Python 3.11 or newer, make and git. Everything is installed into $(VENV), nothing outside the folder is changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$name && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
SEEDS ?= 200
KILLS ?= 20

# Numba doesn't notice a change in a function that another module inlines: one cache per version of kernels and Numba.
KERNELS := $(shell cat pyproject.toml src/mintyard/domain/scheduling/*.py src/mintyard/domain/scheduling/*/*.py requirements/hub.txt 2>/dev/null | cksum | cut -d' ' -f1)
export NUMBA_CACHE_DIR ?= $(abspath $(VENV))/var/numba-$(KERNELS)
export PYTHONHASHSEED ?= random

.PHONY: help demo test quick check format sim crash verify bench docs lock clean

help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

# --- environments: the hub alone, then what developing needs -------------------------------------------------------

$(VENV)/.uv:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; PYTHON=/path/to/python names one" >&2; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check "uv>=0.8"
	@touch "$@"

$(VENV)/.hub: $(VENV)/.uv pyproject.toml requirements/hub.txt
	"$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --require-hashes --requirements requirements/hub.txt
	"$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --no-deps --editable .
	@mkdir -p "$(NUMBA_CACHE_DIR)"; touch "$@"

$(VENV)/.dev: $(VENV)/.hub requirements/dev.txt
	"$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --require-hashes --requirements requirements/dev.txt
	@touch "$@"

# --- what people type ----------------------------------------------------------------------------------------------

demo: $(VENV)/.hub ## the whole story on this machine, in a fresh folder
	@"$(BIN)/python" -m mintyard.demo

test: $(VENV)/.dev ## all tests that need no server
	"$(BIN)/python" -m pytest -n $(WORKERS) --dist worksteal -m "not acceptance and not postgres and not service"

quick: $(VENV)/.dev ## the fast unit tests
	"$(BIN)/python" -m pytest -q -m "not slow and not postgres and not service" tests/unit

check: $(VENV)/.dev ## style, types and import contracts
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/pyright" --pythonpath "$(BIN)/python"
	"$(BIN)/lint-imports"

format: $(VENV)/.dev ## rewrite the code in the house style
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

sim: $(VENV)/.dev ## seeded simulation with faults: make sim SEEDS=10000
	"$(BIN)/python" -m mintyard.sim --seeds $(SEEDS)

crash: $(VENV)/.dev ## kill -9 of a real hub under load: make crash KILLS=200
	"$(BIN)/python" -m tests.crash --kills $(KILLS)

verify: $(VENV)/.dev ## everything, without a limit of time
	@scripts/verify.sh "$(BIN)/python"

bench: $(VENV)/.dev ## the benchmarks
	"$(BIN)/python" -m bench

docs: $(VENV)/.dev ## the reference pages and diagrams made from the code
	"$(BIN)/python" -m scripts.docs

lock: $(VENV)/.uv ## requirements/*.txt anew from pyproject.toml
	@scripts/lock.sh "$(BIN)/uv"

clean: ## remove what make made
	rm -rf "$(VENV)" dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
