# Two commands set everything up: `make demo` and `make test`. A stamp file remembers each installation.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INSTALLED := $(VENV)/.installed
DEVELOPER := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

.PHONY: demo quick test soundness gpu lint format docs clean

demo: $(INSTALLED)
	$(BIN)/tiltproof demo

# A cross-section of the tests for every edit, with some of every package: some 70 CPU seconds
QUICK := tests/enclosures tests/transforms tests/pixels tests/golden tests/test_public_api.py tests/docs/test_facts.py \
	$(addprefix tests/network/test_, arithmetic.py folding.py margins_of_all_labels.py products.py tracing.py) \
	$(addprefix tests/verify/test_, attack.py branch_and_bound.py initial_grid.py partition.py refinement.py state.py tiling_exactly.py) \
	$(addprefix tests/checker/test_, layers.py runs.py tiling.py) \
	$(addprefix tests/training/test_, losses.py recipe.py) \
	$(addprefix tests/models/test_, architectures.py bundled.py load.py) \
	tests/runs/test_curve.py \
	$(addprefix tests/cli/test_, bad_input.py certify.py) \
	$(addprefix tests/onnx/test_, file.py nodes.py) \
	tests/data/test_load.py tests/distributed/test_worker.py tests/export/test_results.py tests/keras tests/tflite tests/kernels/test_relu.py \
	tests/reports/test_plots.py tests/runtime/test_batch_size.py tests/soundness/test_mutations.py

quick: $(DEVELOPER)
	$(BIN)/python -m pytest -q -n 2 -m "not slow" $(QUICK)

test: $(DEVELOPER)
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --doctest-modules src tests

# Faults at every call, every ambient state, random graphs and modules: their short forms are in `make test`
EVERY := tests/verify/test_faults.py tests/test_faults_on_disk.py tests/verify/test_ambient_state.py tests/runs/test_kill.py \
	tests/onnx/test_random_graphs.py tests/network/test_random_modules.py

# Mechanical mutants: all of one file, a sixteenth of these, and of every other file with pixel bounds or network rules a 48th
SAMPLED := $(addprefix network/ops/, products.py attention.py quantize.py norms.py piecewise.py gather.py maxima.py)

soundness: $(DEVELOPER)
	$(BIN)/python -m tests.soundness.campaign --cases 100000 --seed 0 --workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow tests/soundness $(EVERY)
	$(BIN)/python -m tests.soundness.mutations --workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soundness.mechanical pixels/single_cell.py --workers 2 --quiet
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soundness.mechanical $(SAMPLED) --every 16 --workers 2 --quiet
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soundness.mechanical --every 48 --workers 2 --quiet

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
