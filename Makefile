# The two commands of this project: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
# Two test processes of one thread each use two cores better than one process of two threads.
TEST_PROCESSES ?= 2
# A process that imports PyTorch takes half the time if an earlier one has kept what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types imports unit fuzz elastic test-gpu docs release setup clean

setup: $(READY)

# Python's own copy of pip may be an old one, which takes twice as long. Modules are compiled when
# they are first imported, which most of PyTorch's never are.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/staircase demo

# Types are checked beside the tests: mypy uses one core, and the tests both.
test: $(READY)
	$(MAKE) --no-print-directory --jobs 2 lint types imports unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

# One process compiles what tests import while mypy runs, instead of each test process for itself.
$(COMPILED): $(READY)
	-$(BIN)/python -m pytest --collect-only -qq >/dev/null
	touch $@

unit: $(COMPILED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) -m 'not gpu'

# Spoils files of every format at random and judges what happens; the table of docs/reliability.md.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/harness.py --mutations $(or $(MUTATIONS),12000) --seed $(or $(SEED),1)

# Kills one of three nodes of a run, lets it come back, and compares the losses with one process's.
elastic: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/elastic.py $(or $(FOLDER),/tmp/staircase-elastic)

# Uses the Python that is on the path: a machine with a GPU brings its own PyTorch build. Kernels
# are tested there as they are compiled, elsewhere by an interpreter.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu tests/engine/kernels

# The documentation as a site in build/site, with API pages; a broken link fails.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Everything but the upload. Wheel and source archive are installed and tried outside this folder,
# with each extra alone.
release: test docs
	rm -rf dist
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/release.py dist

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
