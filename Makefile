# Everything that a developer runs. `make` alone prints the list.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
UV ?= uv
DEMO_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 3
MEMORY_ARGS ?=
COST_ARGS ?=
CHAOS_ARGS ?=
export FRESH_COMMAND ?= tests/fresh_machine.sh
# Not from the environment, where the runbooks keep the name of a database.
DATABASE =
BIN := .venv/bin
SCRIPTS := .ci/run $(shell grep -l "^\#!" deploy/nos-ec-as deploy/*/*.sh deploy/debian/* tests/*.sh tests/rig/bin/* | sort -u)
PACKAGES := nos_ec producer/nos_producer consumer/nos_consumer gc/nos_gc
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make requirements" $(UPGRADE)

STACK = $(if $(DATABASE),NOS_EC_DEV_DATABASE=$(DATABASE) )$(if $(CELLS),NOS_EC_DEV_CELLS=$(CELLS) )deploy/dev/stack.sh

.PHONY: help venv demo up down down-clean stack-status test test-all test-fast fresh memory cost figures economics chaos vitess check lint types format requirements docs reference man deb clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/.complete ## build .venv from the hashed requirements (PYTHON=python3.12 chooses another Python)

# The stamp is written last, so an interrupted build is repeated from the start. Debian and Ubuntu ship their python3
# without ensurepip. Build isolation is off, because it would install packages that have no hash.
.venv/.complete: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is missing or older than 3.11; use make venv PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no ensurepip; installing python3-venv"; \
	  if [ "$$(id -u)" = 0 ]; then root=; else root="sudo -n"; fi; \
	  command -v apt-get >/dev/null && { $$root apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive $$root apt-get install -y -qq python3-venv </dev/null; } && \
	  $(PYTHON) -c 'import ensurepip' || \
	  { echo "could not; install your system's python3-venv package, then run make again"; exit 1; }; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: venv ## show the whole life of objects on an embedded store (DEMO_ARGS="...")
	$(BIN)/nos-ec demo $(DEMO_ARGS)

up: ## start Ceph, Kafka and MariaDB on this machine, or restart those that died (DATABASE=mysql, vitess; CELLS=3)
	@$(STACK) up

down: ## stop these servers; their data stays
	@$(STACK) down

down-clean: ## stop these servers and remove their data
	@$(STACK) clean

stack-status: ## show which of these servers run; fails if one does not
	@$(STACK) status

test: venv ## run the tests, of the slow ones an eighth each day; REQUIRE_REAL=1 fails where a server cannot be started (PYTEST_ARGS="..." WORKERS=3)
	@echo "Tests that need a server start it themselves. If it cannot be started, they are listed as SKIPPED at the end,"
	@echo "with the reason; with REQUIRE_REAL=1 they fail. A test on servers or in real time that fails runs once more."
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

test-all: export NOS_EC_DEV_WHOLE = 1
test-all: test ## run all tests, and in full what `make test` samples (CONTRIBUTING.md)

test-fast: venv ## run the tests that need no server: unit tests, and the contracts of the embedded stores
	$(BIN)/python -m pytest -n $(WORKERS) tests/unit tests/contract $(PYTEST_ARGS)

fresh: ## make venv, demo, up and down in a minimal Debian, as on a new machine (FRESH_COMMAND="make test")
	@deploy/dev/fresh.sh "$$FRESH_COMMAND"

memory: venv ## measure the memory of a consumer with a backlog of a million (MEMORY_ARGS="--events 100000 --lanes 1 4")
	$(BIN)/python tests/soak/consumer_memory.py $(MEMORY_ARGS)

cost: venv ## measure whether requests cost more in four full cells than in a small store (COST_ARGS="...")
	$(BIN)/python tests/soak/cost_per_object.py $(COST_ARGS)

figures: venv ## measure what figures and listings cost on MariaDB with 10^5 and 10^7 rows (FIGURES_ARGS="--objects 100000")
	$(BIN)/python tests/soak/cost_of_figures.py $(FIGURES_ARGS)

economics: venv ## compare what GC costs in a store and in the simulation (ECONOMICS_ARGS="--folder var --blocks 1000")
	$(BIN)/python tests/soak/gc_economics.py $(or $(ECONOMICS_ARGS),--folder /dev/shm)

chaos: venv ## kill daemons, OSDs, Kafka and MySQL under load for 10 minutes, then compare all objects (CHAOS_ARGS="--seed 7" CELLS=3)
	$(BIN)/python tests/soak/chaos.py $(if $(CELLS),--cells $(CELLS) )$(CHAOS_ARGS)

vitess: venv ## run metadata suites and the whole product on Vitess, which is built first, and move its tables (PYTEST_ARGS="...")
	$(BIN)/python -m pytest tests/soak/vitess_*.py $(PYTEST_ARGS)

check: lint types test ## run lint, types and test

lint: venv ## check style, format, layering, links of the pages, and the shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/sphinx-build -q -W --keep-going -b dummy -c docs . var/docs
	$(BIN)/shellcheck --check-sourced $(SCRIPTS)

types: venv ## check types with mypy, strictly
	$(BIN)/mypy $(PACKAGES) tests

format: venv ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

requirements: ## compile requirements/*.txt from pyproject.toml with uv (UPGRADE=--upgrade for newer versions)
	@command -v $(UV) >/dev/null || { echo "this needs uv: pip install uv, or make requirements UV=/path/to/uv"; exit 1; }
	$(COMPILE) --extra console --output-file requirements/runtime.txt pyproject.toml
	$(COMPILE) --extra console --extra dev --output-file requirements/dev.txt pyproject.toml requirements/build.in
	$(COMPILE) --output-file requirements/clients.txt requirements/clients.in

docs: venv ## build all pages as a site in var/site; a broken link is an error
	$(BIN)/sphinx-build -q -W --keep-going -c docs . var/site

reference: venv ## write docs/CONFIG.md, docs/METRICS.md and the Grafana dashboard from the code
	$(BIN)/python -c 'import pathlib, nos_ec.settings.reference as s; pathlib.Path("docs/CONFIG.md").write_text(s.reference())'
	$(BIN)/python -c 'import pathlib, nos_ec.monitoring.declarations.metrics as m; pathlib.Path("docs/METRICS.md").write_text(m.reference())'
	$(BIN)/python -c 'import pathlib, nos_ec.monitoring.dashboard as d; pathlib.Path("deploy/grafana/nos-ec.json").write_text(d.dashboard())'

man: venv ## write the man page dist/nos-ec.1 from the commands (SOURCE_DATE_EPOCH sets its date)
	@mkdir -p dist
	$(BIN)/python -m nos_ec.cli.manual docs/CLI.md $$(date -u -d @$${SOURCE_DATE_EPOCH:-$$(date +%s)} +%F) >dist/nos-ec.1

deb: venv ## build a Debian package in dist/, with all Python packages in /opt/nos-ec
	@deploy/debian/build.sh dist

clean: ## remove .venv and caches; your stores are left alone
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
