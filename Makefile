# Everything a newcomer needs: `make demo`, `make test`, `make lab`. Each sets up what it lacks.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two cores are enough, and no library may take them all for itself.
export OMP_NUM_THREADS ?= 1

# Jupyter refuses to run as root unless told, as in a container.
LAB_OPTIONS := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: demo lab test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp
	$(BIN)/psnb demo

lab: $(VENV)/demo.stamp
	$(BIN)/jupyter lab $(LAB_OPTIONS) notebooks/01_quickstart.ipynb

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/test.stamp
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.many_workers
	$(BIN)/python -m tests.benchmarks.failover
	$(BIN)/python -m tests.benchmarks.wide_and_deep
	$(BIN)/python -m tests.benchmarks.formats

$(VENV)/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'psnb needs Python 3.11 or newer')"
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "installing psnb and what it needs into $(VENV): a minute or two, once"
	$(BIN)/python -m pip install --quiet --editable ".[demo]"
	touch $@

$(VENV)/test.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "installing psnb and what its tests need into $(VENV): a minute or two, once"
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $@ $(VENV)/demo.stamp

clean:
	rm -rf $(VENV) psnb-demo .mypy_cache .pytest_cache .ruff_cache
