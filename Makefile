# Every target makes its own .venv; nothing else needs to be installed but Python 3.11+.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check format oracle differential conformance benchmark soak golden clean

demo: $(INSTALLED) ## run the demo on an embedded Temporal dev server
	$(BIN)/durable-strands demo $(ARGS)

test: $(INSTALLED) ## run the tests
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

check: $(INSTALLED) ## lint, types, and the files in deploy/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/docker-compose --file deploy/compose.yaml config --quiet
	$(BIN)/kubernetes-validate --strict --quiet deploy/kubernetes/*.yaml

format: $(INSTALLED) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(INSTALLED) ## record golden histories that are not there yet
	$(BIN)/python -m tests.golden

oracle: $(INSTALLED) ## compare the scheduler with its two oracles over all random graphs
	$(BIN)/python -m tests.oracles

differential: $(INSTALLED) ## run random graphs on Strands' own Graph and on a real worker, and compare
	$(BIN)/python -m tests.differential $(ARGS)

conformance: $(VENV)/.conformance ## run Strands' own tests of graphs through durable-strands
	$(BIN)/python -m tests.conformance $(ARGS)

soak: $(INSTALLED) ## 200 runs with approvals and failures, under workers that get killed
	$(BIN)/python -m tests.soak $(ARGS)

benchmark: $(INSTALLED) ## compare with a hand-written workflow, side by side
	$(BIN)/python -m benchmarks

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(VENV)/.conformance: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[conformance]'
	touch $@

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache
