# Every target sets up what it needs in .venv and says so; a second run finds it done. That takes 600 MB from the package
# index and 2.2 GB of disk; "make test" takes up to 6 GB of memory.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Tests start some hundred processes: each would compile all modules if none may keep the result. And they write to
# stdout as they do for most users, through a buffer.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
# Four workers, since tests wait, also on two cores. On one core two: Spark gives up a Python process that has not
# connected after 10 s. And a line of progress in place of a dot for each test; see tests/suite.py.
WORKERS := $(shell [ "$$(nproc 2>/dev/null)" = 1 ] && echo 2 || echo 4)
PYTEST := $(BIN)/python -m pytest -q -o console_output_style=classic -p tests.suite -n $(WORKERS)

# All extras but java, which the recipes install if there is no other Java.
EXTRAS := cli,fakensqd,prometheus,sentry,spark
DEMO_EXTRAS := fakensqd,spark

.PHONY: help demo test quick integration chaos fuzz mutants soak lint composefile docs bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         publish, run the Spark pipeline, show what came out; writes demo/report.html"
	@echo "                  (TOPIC_FILE=some.jsonl: your lines)"
	@echo "make test         everything that needs no outside server"
	@echo "make quick        the quick part of it, which starts neither a JVM nor another process: in a minute"
	@echo "make integration  the same behaviour against real nsqd and nsqlookupd"
	@echo "make chaos        a cluster of real servers whose parts fail at random, and an account of every message"
	@echo "                  (SECONDS=600, SEED=1: that run again, FLAGS=--fake: the emulator, FLAGS=--commands: gnsq pub, copy ...)"
	@echo "make soak         the same for an hour, with a fault a minute: does memory grow (SECONDS, SEED, FLAGS as above)"
	@echo "make fuzz         random inputs, and random sessions beside a real nsqd, with more and more seeds; ten minutes"
	@echo "                  (SECONDS=60 SEED=1: so long, from this seed on; ONLY=test: one test, as pytest names it)"
	@echo "make mutants      plant faults into a copy of the source, and tell which of them the tests catch: half an hour or more"
	@echo "                  (COUNT=60 SEED=1: so many, and these again)"
	@echo "make lint         ruff and mypy, and docker-compose.yml where docker compose is"
	@echo "make docs         the documentation, into site/; warnings are errors"
	@echo "make bench        side by side with the NSQ clients that are installed; writes bench/ (ONLY=consume: that part)"
	@echo "make clean        remove .venv, caches, and what demo, docs and bench have written"

demo: $(VENV)/.demo
	@$(BIN)/python -m integration.demo $(if $(TOPIC_FILE),--file "$(TOPIC_FILE)")

test: $(VENV)/.dev
	$(PYTEST) tests

quick: $(VENV)/.dev
	$(PYTEST) -m "not (spark or slow or subprocess)" --no-processes tests

integration: $(VENV)/.dev
	@$(BIN)/python -m integration.run

chaos: $(VENV)/.dev
	@$(BIN)/python -m integration.chaos --seconds $(or $(SECONDS),120) $(if $(SEED),--seed $(SEED)) $(FLAGS)

soak: $(VENV)/.dev
	@$(BIN)/python -m integration.chaos --seconds $(or $(SECONDS),3600) --interval 60 $(if $(SEED),--seed $(SEED)) $(FLAGS)

fuzz: $(VENV)/.dev
	@$(BIN)/python -m integration.fuzz $(if $(SECONDS),--seconds=$(SECONDS)) $(if $(SEED),--seed=$(SEED)) \
		$(if $(ONLY),--only='$(ONLY)')

mutants: $(VENV)/.dev
	@$(BIN)/python -m integration.mutants $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory composefile

composefile:
	@if docker compose version >/dev/null 2>&1; then \
		docker compose config --quiet && docker compose --file docs/pages/playground/compose.yml config --quiet && \
		echo "docker-compose.yml and the playground: valid, says docker compose"; \
	else echo "docker-compose.yml and the playground: not checked, there is no docker compose here"; fi

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file docs/mkdocs.yml

bench: $(VENV)/.dev
	@$(BIN)/python -m integration.bench $(ONLY)

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse demo bench dist

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or later with the venv module was found." >&2; \
		echo "Install one (Debian: apt-get install python3.11-venv), or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi
	@echo "==> making a virtual environment in $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "==> installing gnsq with fakensqd and Spark into $(VENV) (once; about 500 MB)"
	@$(call install,-e '.[$(DEMO_EXTRAS)]')
	@$(call java)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "==> installing gnsq with all that tests and checks need into $(VENV) (once; about 600 MB)"
	@$(call install,-e '.[$(EXTRAS)]' --group dev)
	@$(call java)
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "==> installing gnsq with all that the documentation needs into $(VENV) (once)"
	@$(call install,-e '.[$(EXTRAS)]' --group docs)
	@touch $@

# pip reads dependency groups since 25.1.
define install
$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' && \
$(BIN)/python -m pip install --quiet --disable-pip-version-check $(1)
endef

define java
$(BIN)/python -m gnsq.spark.java --check 2>/dev/null || { \
	echo "==> no Java that Spark supports was found: installing a packaged one into $(VENV)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[java]'; }
endef
