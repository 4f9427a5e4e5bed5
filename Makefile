# `make` lists the targets. Needs Python 3.11 or later: name another interpreter with
# `make PYTHON=python3.12 test`.

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# By files, since tests of one file share compiled programs. In the order of their names, the last
# ones are short, so that the processes end at about the same time.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

BENCH := .venv-bench
BENCH_READY := $(BENCH)/.ready
# Environments of their own, by versions and Python: .venv-lowest-3.11 and so on.
BOUNDS_PYTHONS := $(foreach v,3.11 3.13,$(if $(shell python$(v) -V 2>/dev/null),$(v)))
BOUNDS := $(foreach v,$(BOUNDS_PYTHONS),lowest-$(v) newest-$(v))
UV := .venv-uv/bin/uv

QUESTIONS := population_step ndde_step throughput work_precision gradient_cost lag_cost plain_cost hold_split \
    dose_events delay_network state_dependent

.PHONY: help demo reproduce bench bench-data test test-all coverage test-bounds lint types docs tutorials package soak clean
.PHONY: $(BOUNDS)
.DEFAULT_GOAL := help

# The text after ## is what `make` shows.
help:
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train four models on the population equation, and report
	@$(BIN)/python -m reproduction population --quick

reproduce: $(READY) ## run the paper's laptop experiments in full, and report
	@$(BIN)/python -m reproduction all

bench: $(BENCH_READY) ## measure speed against other libraries, in an environment of its own
	@for question in $(QUESTIONS); do $(BENCH)/bin/python benchmarks/$$question.py || exit 1; done
	@$(BENCH)/bin/python benchmarks/table.py

bench-data: $(BENCH_READY) ## measure lagrax fit on published tables, and write docs/real-data.md
	@$(BENCH)/bin/python benchmarks/real_tables.py

test: $(READY) ## run the tests
	@$(PYTEST)

test-all: $(READY) ## run the tests, the slow ones included
	@$(PYTEST) -m ""

# Both cost time, so they are a target of their own.
coverage: $(READY) ## run the tests, check types as they run, and measure coverage
	@$(PYTEST) --cov --jaxtyping-packages=lagrax,reproduction,beartype.beartype

test-bounds: $(BOUNDS) ## run the tests with the lowest and the newest allowed dependencies

# Each looks its versions up anew, since newer ones appear. What has no wheel is not tried.
$(BOUNDS): %: $(UV)
	@echo "Testing with the $(subst -, dependencies on Python ,$@)"
	@$(UV) venv -q --no-python-downloads --allow-existing --python python$(lastword $(subst -, ,$@)) .venv-$@
	@$(UV) pip compile -q pyproject.toml --all-extras --only-binary :all: -p .venv-$@/bin/python \
	    --resolution $(if $(findstring lowest,$@),lowest-direct,highest) -o .venv-$@/versions.txt
	@$(UV) pip sync -q -p .venv-$@/bin/python .venv-$@/versions.txt
	@$(UV) pip install -q -p .venv-$@/bin/python --no-deps --no-build-isolation -e .
	@.venv-$@/bin/python -m pytest -n $(JOBS) --dist loadfile

$(UV):
	@$(PYTHON) -m venv .venv-uv
	@.venv-uv/bin/python -m pip --disable-pip-version-check -qq install uv

lint: $(READY) ## check style
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY) ## check static types
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

docs: $(READY) ## build the documentation in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The documentation is in site/: open site/index.html, or $(BIN)/python -m mkdocs serve"

tutorials: $(READY) ## run the notebooks of the documentation anew
	@$(BIN)/jupyter nbconvert --to notebook --execute --inplace --log-level=ERROR \
	    --ExecutePreprocessor.timeout=600 --ExecutePreprocessor.record_timing=False \
	    --ExecutePreprocessor.coalesce_streams=True --ClearMetadataPreprocessor.enabled=True \
	    --ClearMetadataPreprocessor.preserve_cell_metadata_mask="{'tags','short'}" \
	    --ClearMetadataPreprocessor.preserve_nb_metadata_mask="{'kernelspec',('language_info','name')}" \
	    docs/tutorials/*.ipynb

soak: $(READY) ## kill a hundred runs, and try fifty thousand random equations
	@$(BIN)/python results/soak/kills.py --kills 100
	@$(BIN)/python results/soak/properties.py

package: $(READY) ## build the wheel and the sdist, and try each in an empty environment
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation > /dev/null
	@$(BIN)/python tests/repo/package.py dist

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("lagrax needs Python 3.11 or later, and this is " + sys.version.split()[0] + ": name another with PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@echo "Installing lagrax and its pinned dependencies in $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c requirements.lock hatchling
	@$(PIP) install -c requirements.lock --no-build-isolation -e '.[all,dev]'
	@touch $@

$(BENCH_READY): pyproject.toml requirements.lock benchmarks/requirements.txt
	@echo "Installing lagrax and what it is compared with in $(BENCH) (a few minutes the first time)"
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip --disable-pip-version-check -qq install -c requirements.lock hatchling
	@$(BENCH)/bin/python -m pip --disable-pip-version-check -qq install -c requirements.lock \
	    --no-build-isolation -r benchmarks/requirements.txt -e '.[cli]'
	@touch $@

clean: ## remove what these commands made, except results and runs
	@rm -rf $(VENV) $(BENCH) .venv-uv .venv-lowest-* .venv-newest-*
	@rm -rf build dist site .coverage .coverage.* htmlcov .jax_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
