# Two commands set everything up: `make demo` and `make test`. A stamp file remembers each installation.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALLED := $(VENV)/.installed
DEVELOPER := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

.PHONY: gpu demo test soundness lint format docs clean

demo: $(INSTALLED)
	$(BIN)/tiltproof demo

test: $(DEVELOPER)
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --doctest-modules src tests

soundness: $(DEVELOPER)
	$(BIN)/python -m tests.soundness.campaign --cases 100000 --seed 0 --workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow tests/soundness
	$(BIN)/python -m tests.soundness.mutations --workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soundness.mechanical pixels/single_cell.py --workers 2 --quiet

# what only a GPU can show, in less than ten minutes; says so and ends well on a machine without one
gpu:
	PYTHONPATH=src $$(test -x $(BIN)/python && echo $(BIN)/python || echo python3) benchmarks/gpu.py --json gpu.json

lint: $(DEVELOPER)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEVELOPER)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the site, in site/; --strict turns every warning into a failure
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site src/*.egg-info tiltproof-demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing tiltproof into $(VENV) (torch is large: this takes a few minutes the first time)"
	$(PIP) -e .
	@touch $@

$(DEVELOPER): $(INSTALLED)
	$(PIP) -e ".[dev]"
	@touch $@

$(DOCS): $(INSTALLED)
	$(PIP) -e ".[docs]"
	@touch $@
