# make demo      run the whole algorithm on a tiny built-in model; the report is runs/demo/report.html
# make test      run the tests, with a minimum coverage of the core
# make cluster-test  test slurm/ under a real Slurm, some minutes; needs root and `apt-get install slurm-wlm munge`
# make docs      build the documentation as a site with search, in site/
# make setup     make only the environment: .venv in this folder, with the `aopsd` command
#
# PYTHON=...       Python for the environment; default: the first of 3.11 to 3.13 on the PATH
# TORCH_INDEX=...  package index for torch, for example https://download.pytorch.org/whl/cpu (no CUDA libraries)

SHELL := /bin/bash
READY := .venv/.ready
FITS := import sys; print(sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)) or "")
ifndef PYTHON
PYTHON := $(firstword $(foreach name,python3 python3.13 python3.12 python3.11 python,\
	$(if $(shell $(name) -c '$(FITS)' 2>/dev/null),$(name))))
endif
PIP := .venv/bin/python -m pip --disable-pip-version-check
export OMP_NUM_THREADS ?= $(shell nproc 2>/dev/null || echo 2)
export TOKENIZERS_PARALLELISM := false

PYTHON_FITS = if [ -z "$$($(PYTHON) -c '$(FITS)' 2>/dev/null)" ]; then echo "error: needs Python 3.11, 3.12 or 3.13, found \
	$$($(or $(PYTHON),python3) --version 2>&1 | tail -1). Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 2; fi
VENV = $(PYTHON) -m venv $(1) || { echo "error: $(PYTHON) cannot make an environment; on Debian or Ubuntu: \
	apt install python3-venv" >&2; exit 2; }

.PHONY: setup demo test docs cluster-test lint perf grading clean

setup: $(READY)
	@echo "ready: source .venv/bin/activate, then aopsd --help"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON_FITS)
	@echo "setting up .venv with $$($(PYTHON) --version); this downloads torch and takes some minutes"
	@$(call VENV,.venv)
	$(if $(TORCH_INDEX),$(PIP) install --quiet --constraint constraints.txt --index-url $(TORCH_INDEX) torch)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# one thread: the tiny model gains nothing from two, and on a busy machine OpenMP's threads wait for each other
demo: $(READY)
	OMP_NUM_THREADS=1 .venv/bin/aopsd demo

test: $(READY)
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report term --cov-fail-under 97

# Needs none of the package, so an environment of its own: seconds, where .venv takes minutes.
docs: build/docs/.ready
	NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict
	@echo "to read it with search: $(PYTHON) -m http.server 8000 -d site, then http://localhost:8000"

build/docs/.ready: pyproject.toml
	@$(PYTHON_FITS)
	@$(call VENV,build/docs)
	build/docs/bin/pip install --quiet --disable-pip-version-check $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open( \
	"pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

cluster-test: $(READY)
	AOPSD_CLUSTER_TEST=1 .venv/bin/python -m pytest tests/slurm --durations 0

lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright --pythonpath .venv/bin/python

perf: $(READY)
	OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.step_cost --baseline benchmarks/measured/baseline_cpu.json

grading: $(READY)
	.venv/bin/python benchmarks/grading.py --fuzz 100000

clean:
	rm -rf .venv build dist site *.egg-info .pytest_cache .hypothesis .ruff_cache .coverage
