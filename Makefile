# pyllama_turbo: `make` alone lists what there is.
#
# Variables: BACKEND=auto|cpu|cuda  ARCH=86 (CUDA; default: this machine's GPU)  JOBS=N (default: bounded by memory)
#            GRAPHS=off (leave CUDA graphs out)  PYTHON=python3  VENV=.venv (used unless a virtual environment is active)  ARGS="..." (for pytest, demo)
#            SECONDS=60 (of `fuzz`, a target; of `soak`)

PYTHON  ?= python3
BACKEND ?= auto
ARCH    ?=
VENV    ?= .venv
JOBS    ?= $(shell $(PYTHON) scripts/jobs.py $(CHOSEN))
ARGS    ?=
SECONDS ?= 60

ENV   := $(or $(VIRTUAL_ENV),$(VENV))
PY    := $(ENV)/bin/python
SETUP := $(PYTHON) scripts/setup_env.py $(ENV)
# The environment's own cmake and ninja come first, then the machine's.
export PATH := $(abspath $(ENV))/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

# A CUDA compiler without a GPU is a build machine's: there `auto` means the CPU.
CHOSEN := $(if $(filter auto,$(BACKEND)),$(if $(wildcard /dev/nvidia0 /dev/dxg),auto,cpu),$(BACKEND))
DEFINE := --config-settings=cmake.define.
CONFIG := $(DEFINE)TURBO_BACKEND=$(CHOSEN) $(if $(ARCH),$(DEFINE)CMAKE_CUDA_ARCHITECTURES=$(ARCH)) $(if $(filter off OFF,$(GRAPHS)),$(DEFINE)TURBO_CUDA_GRAPHS=OFF)
PIP    := $(PY) -m pip --disable-pip-version-check
OWN    := --no-build-isolation --no-deps

.DEFAULT_GOAL := help
.PHONY: help fetch build demo test build-and-test lint types reference wheel sdist doctor check-cuda test-gpu bench-gpu bench-kernels results fuzz sanitize soak lock clean distclean

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

fetch: ## Download the pinned llama.cpp source into the user's cache and check its hash
	@$(SETUP) && $(PY) scripts/fetch_upstream.py

build: ## Build the library and install the package, editable, into the virtual environment
	@$(SETUP) && $(PIP) install --quiet $(OWN) $(CONFIG) -e .

demo: build ## Fetch a small model and show text, KV types, bytes, context and speed with turbo3
	@$(PY) -m pyllama_turbo demo $(ARGS)

test: build ## Build if needed and run the tests
	@$(SETUP) test && $(PY) -m pytest $(ARGS)

build-and-test: test ## The same as `test`

lint: ## Check style (ruff)
	@$(SETUP) dev && $(PY) -m ruff check . && $(PY) -m ruff format --check .

types: ## Check types of the package and the examples (mypy --strict)
	@$(SETUP) test dev && $(PY) -m mypy --strict -p pyllama_turbo && $(PY) -m mypy --strict examples

reference: ## Write docs/cli.md, docs/api.md and the tables of docs/reliability.md and docs/quality.md from what they describe
	@$(PY) scripts/make_cli_reference.py && $(PY) scripts/make_api_reference.py && $(PY) scripts/make_reliability.py && $(PY) scripts/make_quality.py

wheel: ## Build a wheel for this machine into dist/
	@$(SETUP) && $(PIP) wheel $(OWN) $(CONFIG) -w dist .

sdist: ## Build a source distribution into dist/
	@$(SETUP) && $(PY) -c "from scikit_build_core.build import build_sdist as b; print('dist/' + b('dist'))"

doctor: ## Report what this machine and this build can do
	@$(PY) -m pyllama_turbo doctor

check-cuda: ## Compile our CUDA sources for sm_80 to sm_120 if nvcc is there (ARCH= for fewer)
	@$(SETUP) && $(PY) scripts/check_cuda.py $(ARCH)

test-gpu: build ## Run the tests that need a GPU: kernels against float64, then models against the CPU
	@$(SETUP) test && $(PY) scripts/gpu_check.py test && $(PY) -m pytest tests/gpu $(ARGS)

bench-kernels: ## Time the CUDA kernels alone, a layer at a time
	@$(PYTHON) scripts/gpu_check.py bench $(ARGS)

results: ## Draw docs/results and the tables of docs/quality.md from their records
	@$(PY) -m pyllama_turbo report $(sort $(wildcard docs/results/*.jsonl)) -o docs/results/report.html --markdown docs/results/README.md
	@$(PY) scripts/make_quality.py

bench-gpu: build ## Measure the published GPU numbers on this machine: speed, phases, launches, switches
	@$(PY) scripts/gpu_bench.py $(ARGS)

fuzz: ## Fuzz every reader of hostile input with coverage, SECONDS a target (needs clang)
	@$(SETUP) fuzz && $(PY) scripts/fuzz.py --seconds $(SECONDS) $(ARGS)

sanitize: ## Run the native tests with AddressSanitizer and UBSan
	@$(SETUP) test && $(PY) scripts/sanitize.py $(ARGS)

soak: build ## Compare SECONDS of mixed work with fresh processes
	@$(PY) scripts/soak.py --seconds $(SECONDS) $(ARGS)

lock: ## Write requirements.lock anew (ARGS="python3.10 python3.11 ..." names the interpreters)
	@$(PYTHON) scripts/make_lock.py $(ARGS)

clean: ## Remove build results
	@rm -rf native/build dist .pytest_cache .mypy_cache .ruff_cache && find . -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove the virtual environment too
	@rm -rf $(VENV)
