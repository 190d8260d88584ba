# Set up, run, test, lint: needs Python 3.11 or newer with pip, and make. `make help` lists targets and variables.

PYTHON      ?= python3
VENV        ?= .venv
JAX_VENV    ?= $(VENV)-jax
TORCH       ?= torch==2.13.0
TORCH_INDEX ?=
TRITON      ?= triton==3.7.1
ARGS        ?=
WORKERS     ?= auto

# The Triton of the card that kernels are timed on: beside the environment, since that has another one.
CARD_TRITON := .venv-triton-3.6.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Python compiles what is imported; pip would compile every file, which was a third of its time for [dev].
INSTALL := $(PIP) install --no-compile
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Tests start processes: what one of them compiled of Python the others read.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-more test-jax test-gpu replay replay-all docs docs-check lint format bench
.PHONY: bench-gpu package test-package release-check
.PHONY: bench-gpu-more versions clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  PYTHON=$(PYTHON)  an interpreter, 3.11 or newer'
	@echo '  VENV=$(VENV)  where the environment goes'
	@echo '  JAX_VENV=$(JAX_VENV)  where that of make test-jax goes'
	@echo '  TORCH=$(TORCH)  the exact torch requirement; it is installed first'
	@echo '  TORCH_INDEX=  your CPU-only wheel index, used for torch alone; empty: where pip looks anyway'
	@echo '  TRITON=$(TRITON)  the triton that tests use; empty: what torch brings along'
	@echo '  ARGS=  passed on to pytest, the gate, the demo or the benchmark'
	@echo '  WORKERS=$(WORKERS)  processes that run tests'

demo: $(VENV)/.weft-demo ## packs real text and a photograph, plans, verifies, runs, draws
	$(BIN)/python -m weft.demo $(ARGS)

test: $(VENV)/.weft-test ## tests: a sample of every law, some three minutes on two cores
	$(PYTEST) $(ARGS)

test-more: $(VENV)/.weft-test ## the other tests that a change must pass
	$(PYTEST) -m 'more and not wide' $(ARGS)

test-jax: $(JAX_VENV)/.weft-jax ## weft.jax, in an environment of its own that has no torch
	$(JAX_VENV)/bin/python -c 'from importlib.util import find_spec; assert not find_spec("torch"), "torch is installed"'
	$(JAX_VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m 'not wide' tests/jax $(ARGS)

test-gpu: $(VENV)/.weft-test ## kernels on the GPU of this machine, and compiled for every other
	$(BIN)/python -c 'import torch; assert torch.cuda.is_available(), "torch finds no GPU here"'
	$(BIN)/python -m pytest -m 'wide or not wide' tests/kernels tests/triton tests/torch $(ARGS)
	JAX_PLATFORMS=cuda,cpu $(BIN)/python -m pytest tests/jax/test_gpu.py

replay: $(VENV)/.weft-test $(CARD_TRITON)/.weft-triton ## whether plans or kernels changed: a part, within a minute
	$(BIN)/python -m tests.replay $(ARGS)

replay-all: $(VENV)/.weft-test $(CARD_TRITON)/.weft-triton ## every plan and kernel of the gate, for every target
	$(BIN)/python -m tests.replay --all $(ARGS)

docs: $(VENV)/.weft-test ## the documentation, its code run: build/site/index.html
	$(BIN)/python docs/site/build.py build/site

docs-check: docs ## its links and pictures, in Chromium if there is one
	$(BIN)/python docs/site/check.py build/site

package: $(VENV)/.weft-dev ## a wheel and an sdist in dist
	rm -rf dist
	$(BIN)/python -m hatchling build

test-package: package ## installs them into fresh environments, with and without torch, and runs the README there
	TORCH='$(TORCH)' TORCH_INDEX='$(TORCH_INDEX)' $(BIN)/python release/installed.py dist

release-check: $(VENV)/.weft-dev ## what a release still lacks
	$(BIN)/python release/lacking.py

lint: $(VENV)/.weft-dev ## style, format, types of the lower floors, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.weft-dev ## rewrites the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.weft-demo ## weft beside its peers on this CPU, a few minutes
	$(BIN)/weft bench cpu --device cpu --rounds 5 $(ARGS)

bench-gpu: $(VENV)/.weft-demo ## the core dozen on a GPU, ten minutes; again: what is missing
	$(BIN)/weft bench core --device cuda $(ARGS)

bench-gpu-more: $(VENV)/.weft-demo ## then 4k to 1M tokens, what masks cost, and the peers that compile for minutes
	$(BIN)/weft bench scaling --device cuda --peers weft-triton,flex $(ARGS)
	$(BIN)/weft bench scaling core --device cuda --peers weft-plan,flex-mask $(ARGS)
	$(BIN)/weft bench core --device cuda --peers flex-flash $(ARGS)
	$(BIN)/weft bench core --device cuda --peers flex-tuned $(ARGS)

versions: $(VENV)/.weft-test ## what the tests run with
	@$(BIN)/python -V
	@$(PIP) list

clean: ## removes the environment and what the tools left behind
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -e '$(VENV)/.weft-settings' ]; then rm -rf '$(VENV)'; fi
	@if [ -e '$(CARD_TRITON)/.weft-triton' ]; then rm -rf '$(CARD_TRITON)'; fi
	@if [ -e '$(JAX_VENV)/.weft-made' ]; then rm -rf '$(JAX_VENV)'; fi

# ------------------------------------------------------------------------------------------------------ the environment
# Stamp files inside it make the second time quick. torch comes before everything that could pull another one, and is
# named again afterwards: should the extras disagree with TORCH, pip says so instead of replacing it.

$(VENV)/.weft-dev: $(VENV)/.weft-settings pyproject.toml
	$(INSTALL) -q -e '.[dev]'
	@touch $@

$(VENV)/.weft-torch: $(VENV)/.weft-settings
	@echo 'installing $(TORCH) (the large part; once)'
	@$(INSTALL) $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') '$(TORCH)'
	@touch $@

$(VENV)/.weft-demo: $(VENV)/.weft-torch pyproject.toml
	$(INSTALL) -q '$(TORCH)' -e '.[torch,plot]'
	@touch $@

$(VENV)/.weft-test: $(VENV)/.weft-torch pyproject.toml
	$(INSTALL) -q '$(TORCH)' $(if $(TRITON),'$(TRITON)') -e '.[torch,plot,transformers,diffusers,docs,dev]'
	@touch $@ $(VENV)/.weft-demo $(VENV)/.weft-dev

$(CARD_TRITON)/.weft-triton: $(VENV)/.weft-test
	@rm -rf '$(CARD_TRITON)'
	$(INSTALL) -q --no-deps --target '$(CARD_TRITON)' 'triton==$(CARD_TRITON:.venv-triton-%=%)'
	@touch $@

# Nothing of it is shared with the others: no torch may be found here. The newest JAX that there is for PYTHON.
$(JAX_VENV)/.weft-jax: pyproject.toml
	@if [ -e '$(JAX_VENV)' ] && [ ! -e '$(JAX_VENV)/.weft-made' ]; then \
	  echo >&2 'weft: $(JAX_VENV) was not made by this Makefile; remove it, or choose another place: make test-jax JAX_VENV=...'; \
	  exit 1; \
	fi
	@[ -e '$(JAX_VENV)/.weft-made' ] || { '$(PYTHON)' -m venv '$(JAX_VENV)' && touch '$(JAX_VENV)/.weft-made'; }
	$(JAX_VENV)/bin/python -m pip --disable-pip-version-check install --no-compile -q -e '.[jax-test,dev]'
	@touch $@

# Looks every time, but writes its file only when the interpreter, a variable or the folder is another one: then the
# environment is made anew. A folder that this Makefile did not make is never removed. (A checksum, since an index may
# hold a password; PRECIOUS, so that an interrupted set-up is still known as ours.)
.PRECIOUS: $(VENV)/.weft-settings
$(VENV)/.weft-settings: FORCE
	@command -v '$(PYTHON)' >/dev/null || { echo >&2 \
	  'weft: there is no $(PYTHON) here; name an interpreter: make $(MAKECMDGOALS) PYTHON=/path/to/python3'; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 \
	  "weft: needs Python 3.11 or newer, and $(PYTHON) is $$('$(PYTHON)' -V 2>&1); use PYTHON=/path/to/a/newer/python3"; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 \
	  'weft: $(PYTHON) lacks its venv module; on Debian or Ubuntu: apt-get install python3-venv; or use PYTHON=/path/to/another/python3'; exit 1; }
	@now="$$({ '$(PYTHON)' -V; echo '$(CURDIR) $(TORCH) $(TORCH_INDEX) $(TRITON)'; } | cksum)"; \
	if [ "$$now" = "$$(cat '$@' 2>/dev/null)" ]; then exit 0; fi; \
	if [ -e '$(VENV)' ] && [ ! -e '$@' ]; then \
	  echo >&2 'weft: $(VENV) was not made by this Makefile; remove it, or choose another place: make $(MAKECMDGOALS) VENV=...'; exit 1; \
	fi; \
	echo 'making $(VENV)'; \
	rm -rf '$(VENV)' && mkdir -p '$(VENV)' && echo unfinished >'$@' && \
	'$(PYTHON)' -m venv '$(VENV)' && echo "$$now" >'$@'

FORCE:
