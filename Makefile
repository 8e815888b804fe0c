# Everything a clone needs: `make demo` and `make test` install what they use on first run.

PYTHON  ?= $(shell tools/python)
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTEST  := $(BIN)/python -m pytest
TYPED   := src tests tools $(if $(wildcard benchmarks/*.py),benchmarks) $(if $(wildcard examples/*.py),examples)

# Seconds one test may take, and all tests together. They take about five minutes on two quiet cores; the bound is for
# a machine that is busy with other things.
TEST_TIMEOUT_S  ?= 300
SUITE_TIMEOUT_S ?= 2400
SOAK_TIMEOUT_S  ?= 7200

# Two processes of tests per core, since half of the tests wait for other processes most of the time; tests that share
# something costly stay together.
CORES    := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PARALLEL ?= --numprocesses=$(shell echo $$((2 * $(CORES)))) --dist=loadscope

# The requirement numbers to demand, e.g. SCOPE=RF,CM or SCOPE=CM-5; empty means all of them.
SCOPE ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test check format bench soak requirements lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1	\2/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do printf '  %-14s %s\n' "$$name" "$$text"; done

install: $(STAMP) ## make .venv from requirements.lock, with .venv/bin/rostra

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Rostra needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "Making $(VENV) failed; on Debian and Ubuntu the package python3-venv is needed." >&2; exit 1; }
	$(BIN)/pip install --quiet --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@# Where the environment forbids Python to keep what it compiled, every process would compile everything again.
	@$(BIN)/python -m compileall -q -j 0 src $(VENV)/lib || true
	@touch $@

demo: $(STAMP) ## three nodes, publishers and subscribers, SIGKILL of the owner in mid-stream, and the count at the end
	$(BIN)/rostra demo

check: $(STAMP) ## lint, format, types, and the imports between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python -m tools.import_graph

test: check ## the checks, then every test but the soak, then what they proved (about six minutes on two quiet cores)
	timeout --foreground --signal=INT $(SUITE_TIMEOUT_S) $(PYTEST) -m "not soak" --timeout=$(TEST_TIMEOUT_S) $(PARALLEL)

# First what keeps every core busy by itself and is counted in seeds per core-hour, then the rest side by side.
soak: $(STAMP) ## the long tests: thousands of seeds, a million fuzzed frames, a hundred million rows
	SOAK=1 $(PYTEST) -m soak --timeout=$(SOAK_TIMEOUT_S) tests/simulation
	SOAK=1 $(PYTEST) -m soak --timeout=$(SOAK_TIMEOUT_S) --numprocesses=auto --dist=loadscope --ignore=tests/simulation tests

requirements: $(STAMP) ## run the marked tests and list every number, fabric by fabric; SCOPE=CM,RF-3 demands those
	@rm -f .rostra/requirements.json
	@$(PYTEST) -q -m "requirement and not soak" --timeout=$(TEST_TIMEOUT_S) $(PARALLEL) || true
	@$(BIN)/python tools/requirements_report.py $(if $(SCOPE),--scope $(SCOPE))

bench: $(STAMP) ## Rostra and its peers side by side, into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks --write

format: $(STAMP) ## put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## choose new versions: rewrites both lock files (needs uv)
	tools/lock

clean: ## remove .venv, caches and reports
	rm -rf $(VENV) .rostra .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
