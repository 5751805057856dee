# Everything a developer or CI runs. `make help` lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# On two cores: tests of processes and servers wait for a third of their time.
WORKERS := 3
# Where it is set, each of some thousand Python processes of the tests would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(READY) ## Set up everything: virtual environment, Java, PostgreSQL

# The stamp is newer than what it depends on: nothing to do.
$(READY): pyproject.toml constraints.txt scripts/install.sh scripts/fetch_postgres.py src/penstock/postgres/installations.py
	@PYTHON="$(PYTHON)" bash scripts/install.sh "$(VENV)"
	@touch $@

.PHONY: check
check: $(READY) ## Lint, check formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: test
test: $(READY) ## Run all tests on PostgreSQL 15 to 18 and Spark
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

.PHONY: soak
soak: $(READY) ## Run all tests on every server, and those that repeat a fault with their full counts
	PENSTOCK_SOAK=1 $(BIN)/pytest -n $(WORKERS) --dist loadgroup

.PHONY: demo
demo: $(READY) ## Show the whole pipe at work, on this machine, in a minute and a half
	$(BIN)/penstock demo

.PHONY: bench
bench: $(READY) ## Measure, each figure beside its goal
	$(BIN)/penstock bench

.PHONY: clean
clean: ## Remove what `make` made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
