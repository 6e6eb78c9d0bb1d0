# Everything goes through one virtual environment, made on first use. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt

METHOD ?= fedcorr
EXPERIMENT ?= rho_tau
SEEDS ?= 3
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
RUNS ?= runs
MINUTES ?= 10
ARGS ?=
NEXT := $(addprefix tests/unit/,harness/test_hydra_versions.py harness/test_config.py harness/test_plugins.py \
  harness/test_trust.py sweep/test_grid.py)

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install dev demo test test-all test-hydra-next lint types format sweep report bench chaos fuzz docs clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo
	@echo '  Variables of sweep and report: METHOD=fedavg,fedcorr EXPERIMENT=rho_tau SEEDS=5 JOBS=2 RUNS=runs ARGS="rounds=30"'

install: $(READY) ## Make the virtual environment with what running methods needs (minutes, gigabytes: torch)

dev: $(DEV) ## Add what tests, types, documentation, SLURM and Ray need

$(READY): pyproject.toml constraints.txt
	@echo 'making $(VENV): torch and what it brings are gigabytes; this takes some minutes the first time'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(DEV): $(READY)
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(READY) ## Compare four methods in three papers' regimes, with a table and a report (one to three minutes)
	$(BIN)/fnll sweep experiment=demo runs_dir=$(RUNS)/demo --jobs $(JOBS) --report $(RUNS)/demo-report

test: $(DEV) ## Run the tests (about ten minutes on two cores)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(ARGS)

test-all: $(DEV) ## Run all tests, the slow ones included
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov=fnll --cov-report=term-missing:skip-covered $(ARGS)

test-hydra-next: $(DEV) ## Compose configs with the candidate for the next Hydra, in a folder of its own
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --pre --no-deps --upgrade --target $(VENV)/hydra-next \
	  'hydra-core>=1.4.0rc1' 'omegaconf>=2.4.1rc1'
	PYTHONPATH=$(abspath $(VENV))/hydra-next $(BIN)/python -m pytest $(NEXT) $(ARGS)

lint: $(DEV) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(DEV) ## Check types
	$(BIN)/mypy

format: $(DEV) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sweep: $(READY) ## Run a grid: make sweep METHOD=fedcorr EXPERIMENT=rho_tau SEEDS=3
	$(BIN)/fnll sweep experiment=$(EXPERIMENT) method=$(METHOD) 'seed=range($(SEEDS))' runs_dir=$(RUNS) --jobs $(JOBS) $(ARGS)

report: $(READY) ## Turn the runs into tables, figures and a page: make report RUNS=runs
	$(BIN)/fnll report $(RUNS) --out report $(ARGS)

bench: $(READY) ## Measure speed against bare PyTorch, in one run
	$(BIN)/fnll bench $(ARGS)

chaos: $(DEV) ## Kill, fill, flip and damage runs for MINUTES=10, and count
	$(BIN)/python tests/campaigns/chaos.py --minutes $(MINUTES) $(ARGS)

fuzz: $(DEV) ## Mutate a thousand command lines and configs
	FNLL_FUZZ=1000 $(BIN)/python -m pytest -rP -m slow tests/system/test_mistakes.py -k mutated $(ARGS)

docs: $(DEV) ## Build the documentation into site/ (warnings are errors)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove what can be made again (not the runs)
	rm -rf $(VENV) site dist build .mypy_cache .ruff_cache .pytest_cache
