# Millpond. `make help` lists the targets; `make demo` and `make test` set up whatever is missing.

PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= build
# Two: each compilation against TensorFlow's headers takes 1 to 2 GB.
JOBS   ?= 2
# Integration tests at a time: one more than cores, because a test waits for two fifths of its time.
SERVERS ?= 3
# The oldest glibc on which a wheel runs; `auto` takes what the build links.
WHEEL_PLATFORM ?= manylinux_2_34_x86_64
# What `make test-busy` runs, and how often.
BUSY_TESTS ?= tests/integration
BUSY_RUNS ?= 1
# The time of each target of `make fuzz`.
FUZZ_SECONDS ?= 60
# The time of the random changes of `make soak`.
SOAK_MINUTES ?= 30

BIN    := $(VENV)/bin
MODELS := $(BUILD)/models

# The sources of the module; a change in any of them rebuilds the targets that depend on it.
NATIVE_SOURCES := CMakeLists.txt $(shell find cmake native protos -type f)
NATIVE_TESTS   := $(shell find tests/native -type f 2>/dev/null)
CXX_SOURCES    := $(shell find native tests/native -name '*.h' -o -name '*.cc' -o -name '*.cpp' 2>/dev/null)
# clang-tidy runs only on the rungs below TensorFlow, because reading TensorFlow's headers takes minutes.
TIDY_SOURCES   := $(shell find native/base native/metrics native/memory -name '*.cc' 2>/dev/null)
# All that the site of the documents is made of.
DOCUMENTS      := mkdocs.yml scripts/docs_site.py $(shell find docs -type f) $(shell git ls-files '*.md' 2>/dev/null)
PYTHON_SOURCES := millpond serving fleet warmup loadtest tests scripts

# $(call configure,FOLDER,OPTIONS,COMPILER): runs CMake and prints its output only if it fails. A folder keeps the compiler
# of its first run.
define configure
mkdir -p $(BUILD)/$(1) && { $(3) cmake -S . -B $(BUILD)/$(1) $(2) >$(BUILD)/$(1)/configure.log 2>&1 \
  || { cat $(BUILD)/$(1)/configure.log; exit 1; }; }
endef

# A sanitizer build has only the rungs below TensorFlow and their tests (tests/native/CMakeLists.txt).
# Of TensorFlow's package it takes a header, for the accelerators' tests, which run in these builds alone.
WITHOUT_TENSORFLOW = -G Ninja -DMILLPOND_BUILD_MODULE=OFF -DMILLPOND_BUILD_TESTS=ON \
  -DMILLPOND_TENSORFLOW_DIR=$(firstword $(wildcard $(abspath $(VENV))/lib/python3*/site-packages/tensorflow))
# With AddressSanitizer clang compiles in a third of the time of g++. Its ThreadSanitizer hangs if a child gets a signal.
CLANG := CC=clang-14 CXX=clang++-14

# ThreadSanitizer's shadow memory collides with the random addresses of newer kernels.
UNRANDOMIZED := $(shell setarch -R true 2>/dev/null && echo setarch -R)
# A shard takes seconds; one that hangs must not block the rest of the run, and ends with the name of its test.
CTEST := $(UNRANDOMIZED) ctest -j $(JOBS) --output-on-failure --no-tests=error --timeout 300

# Suppresses the lines that TensorFlow prints at every import.
export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Keeps compiled Python, whatever the environment says: else each pytest rewrites the assertions of 480 files anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- Running it -----------------------------------------------------------------------------------------------

.PHONY: demo
demo: install ## Serve the CTR model, swap a version in and out under load, and print the figures
	$(BIN)/python -m loadtest demo --directory $(BUILD)/demo $(ARGS)

.PHONY: serve
serve: install ## Serve ARGS, for example ARGS="--model_name=ctr --model_base_path=/models/ctr"
	$(BIN)/millpond serve $(ARGS)

.PHONY: check
check: setup ## Run what comes before each commit: lint, unit tests, native tests (2 minutes if native/ is built)
	scripts/run_together.sh '$(MAKE) lint' '$(MAKE) unit native'

.PHONY: test
# What several lanes need comes first, so that nothing is built twice at once. Fleets mostly wait, and have a lane beside
# the two that keep the cores busy, with files of `integration` that mostly wait too. One run shows every failure.
test: setup $(MODELS)/.fetched $(BUILD)/grpc_js/.installed $(BUILD)/kubernetes/.installed $(BUILD)/jax/.installed ## Run all tests
	@scripts/run_together.sh '$(MAKE) integration IN_ANOTHER_LANE="$(WAITING_TESTS)"' \
	  'failed=0; $(MAKE) unit JOBS=1 || failed=1; $(MAKE) --keep-going native sanitize || exit 1; exit $$failed' \
	  '$(MAKE) --keep-going ray fleet WITH_FLEETS="$(WAITING_TESTS)"'

.PHONY: lint
lint: lint-python lint-native docs ## Check style, types, the ladder of native/, the documents' links and, by clang-tidy, the rungs below TensorFlow

.PHONY: bench
bench: setup packages-bench ## Measure figures of docs/figures.md: start and requests per second
	$(BIN)/python -m loadtest bench --directory $(BUILD)/demo $(ARGS)

.PHONY: gpu
gpu: setup ## Measure this machine's CPUs beside its GPU (5 minutes); ARGS="--help" lists the options
	$(BIN)/python -m loadtest gpu --models $(BUILD)/demo $(ARGS)

.PHONY: bench-native
bench-native: setup ## Measure the parts of native/ that requests run through, over jemalloc
	@$(call configure,editable,-DMILLPOND_BUILD_BENCH=ON)
	cmake --build $(BUILD)/editable -j $(JOBS)
	for bench in $(BUILD)/editable/native/bench/*_bench; do \
	  LD_PRELOAD=libjemalloc.so.2 $$bench || exit 1; done

# --- Setting up -----------------------------------------------------------------------------------------------

.PHONY: install
install: $(VENV)/.installed ## Install everything for building and serving: packages, the virtual environment, the native module

.PHONY: setup
setup: install $(VENV)/.dependencies ## Install that, and the packages for tests, lint and load tests
	@scripts/install_packages.sh test

.PHONY: packages-%
packages-%:
	@scripts/install_packages.sh $*

# All requirements of the build without the project itself, so that a change of the code installs nothing.
$(VENV)/.build-dependencies: pyproject.toml | packages-build packages-grpc packages-run
	@echo "Installing TensorFlow and the build tools into $(VENV) (about 600 MB, one or two minutes)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1,<27'
	$(BIN)/pip install --quiet --group build
	@touch $@

# Editable: the Python files stay here, the module lands in the virtual environment.
$(VENV)/.installed: $(VENV)/.build-dependencies $(NATIVE_SOURCES) LICENSE | packages-build packages-grpc packages-run
	@echo "Building the native module (a few minutes the first time, seconds after a change)"
	$(BIN)/pip install --quiet --no-build-isolation -C build-dir=$(BUILD)/editable --editable .
	@touch $@

$(VENV)/.dependencies: $(VENV)/.build-dependencies
	@echo "Installing the packages for tests, lint and load tests into $(VENV) (about a minute)"
	$(BIN)/pip install --quiet --group dev
	@touch $@

# --- Tests ----------------------------------------------------------------------------------------------------

.PHONY: unit
unit: setup $(BUILD)/kubernetes/.installed ## Run the unit tests (no TensorFlow, seconds)
	$(BIN)/pytest tests/unit tests/fleet $(if $(filter 1,$(JOBS)),,-n $(JOBS) --dist worksteal)

.PHONY: native
native: setup sanitize-address native-release ## Build and run the native tests, each in the build that proves most

# What no sanitizer build can hold: TensorFlow, and memory over jemalloc.
.PHONY: native-release
native-release: setup
	@$(call configure,editable,-DMILLPOND_BUILD_TESTS=ON)
	cmake --build $(BUILD)/editable -j $(JOBS)
	$(CTEST) --test-dir $(BUILD)/editable

.PHONY: sanitize
sanitize: sanitize-address sanitize-thread ## Run the native tests below TensorFlow under both sanitizers

sanitize-address: SANITIZER_COMPILER := $(CLANG)
.PHONY: sanitize-address sanitize-thread
sanitize-address sanitize-thread: sanitize-%: $(VENV)/.build-dependencies packages-build packages-grpc packages-test packages-clang
	@$(call configure,$*,$(WITHOUT_TENSORFLOW) -DMILLPOND_SANITIZE=$*,$(SANITIZER_COMPILER))
	cmake --build $(BUILD)/$* -j $(JOBS)
	$(CTEST) --test-dir $(BUILD)/$*

RAY_TESTS     := tests/integration/test_fleet_ray.py
WAITING_TESTS := $(addprefix tests/integration/test_,autotuning.py object_storage.py)
FLEET_TESTS   := $(filter-out $(RAY_TESTS),$(wildcard tests/integration/test_fleet*.py)) tests/integration/test_kubernetes.py

.PHONY: integration
integration: setup $(MODELS)/.fetched $(BUILD)/grpc_js/.installed $(BUILD)/jax/.installed ## Run the integration tests of a server (stock clients, real models)
	$(BIN)/pytest tests/integration -n $(SERVERS) --dist loadfile --no-loadscope-reorder \
	  $(addprefix --ignore=,$(RAY_TESTS) $(FLEET_TESTS) $(IN_ANOTHER_LANE))

.PHONY: fleet
fleet: setup $(BUILD)/kubernetes/.installed ## Run the integration tests of fleets (three servers, HAProxy, Kubernetes' API by a stand-in)
	$(BIN)/pytest $(FLEET_TESTS) $(WITH_FLEETS)

.PHONY: ray
ray: setup ## Run a fleet on a Ray cluster of this machine
	$(BIN)/pytest $(RAY_TESTS)

.PHONY: test-busy
# A test waits for a state and never for a time, so these runs fail only for defects.
test-busy: setup $(MODELS)/.fetched $(BUILD)/grpc_js/.installed $(BUILD)/jax/.installed ## Run BUSY_TESTS (all integration tests) on one core beside a busy loop, BUSY_RUNS (1) times
	@failed=0; for run in $$(seq $(BUSY_RUNS)); do \
	  scripts/beside_busy_loop.sh $(BIN)/pytest -q $(BUSY_TESTS) || failed=$$((failed + 1)); \
	done; echo "$$failed of $(BUSY_RUNS) runs failed"; exit $$((failed > 0))

.PHONY: soak
soak: setup $(MODELS)/.fetched ## Run the long forms of tests; versions change at random under load for SOAK_MINUTES (30)
	MILLPOND_SOAK=1 MILLPOND_SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/pytest tests/integration -m soak -n $(SERVERS) --dist loadfile

$(MODELS)/.fetched: scripts/fetch_models.py | $(VENV)/.dependencies
	$(BIN)/python scripts/fetch_models.py $(MODELS)
	@touch $@

# npm itself comes with Node.js, in a package of the tests. If its registry cannot be reached, the tests of this
# one client are skipped and say so, and the next run tries again.
$(BUILD)/grpc_js/.installed: $(wildcard tests/integration/grpc_js/package*.json) | $(VENV)/.dependencies
	@rm -f $(@D)/.unreachable
	scripts/install_grpc_js.sh $(BIN)/python $(@D) && touch $@ || touch $(@D)/.unreachable

# In a virtual environment of its own, since some packages want other versions than the server.
$(BUILD)/kubernetes/.installed: pyproject.toml | $(VENV)/.build-dependencies
	@echo "Installing Helm's engine and Kubernetes' schemas into $(@D) (40 s and 800 MB the first time)"
	test -x $(@D)/bin/pip || $(BIN)/python -m venv $(@D)
	$(@D)/bin/pip install --quiet --upgrade 'pip>=25.1,<27'
	$(@D)/bin/pip install --quiet --group kubernetes
	@touch $@

# JAX beside the packages of the server's own environment: what that has counts where both have it.
$(BUILD)/jax/.installed: pyproject.toml | $(VENV)/.dependencies
	@echo "Installing JAX into $(@D) (half a minute and 400 MB the first time)"
	test -x $(@D)/bin/pip || $(BIN)/python -m venv $(@D)
	$(BIN)/python -c 'import sysconfig; print("import sys; sys.path.insert(0, %r)" % sysconfig.get_path("purelib"))' \
	  >"$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/server.pth"
	$(@D)/bin/pip install --quiet --upgrade 'pip>=25.1,<27'
	$(@D)/bin/pip install --quiet --group jax
	@touch $@

.PHONY: fuzz
# TensorFlow's headers need the compiler of its package, so the targets above it run in the usual build.
fuzz: setup packages-clang ## Run each fuzz target (or FUZZ_TARGETS) on new seeds for FUZZ_SECONDS (60)
	@$(call configure,fuzz,$(WITHOUT_TENSORFLOW) -DMILLPOND_FUZZ=ON -DMILLPOND_SANITIZE=address \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo,$(CLANG))
	cmake --build $(BUILD)/fuzz -j $(JOBS) --target fuzz_targets
	@$(call configure,editable,-DMILLPOND_BUILD_TESTS=ON)
	cmake --build $(BUILD)/editable -j $(JOBS) --target fuzz_targets
	@$(call configure,address,$(WITHOUT_TENSORFLOW) -DMILLPOND_SANITIZE=address,$(CLANG))
	cmake --build $(BUILD)/address -j $(JOBS) --target wire_fuzz_test
	$(BIN)/python scripts/run_fuzz_targets.py --seconds $(FUZZ_SECONDS) --jobs $(JOBS) --work $(BUILD)/fuzz/runs \
	  --build $(BUILD)/fuzz --build $(BUILD)/editable --build $(BUILD)/address $(FUZZ_TARGETS)
	$(if $(FUZZ_TARGETS),,MILLPOND_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest --timeout=0 tests/integration/test_fuzz_requests.py)

# --- Lint -----------------------------------------------------------------------------------------------------

.PHONY: lint-python
lint-python: setup
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy --strict
	$(BIN)/python scripts/check_seam.py

.PHONY: lint-native
lint-native: packages-build packages-test packages-lint
	$(PYTHON) scripts/check_ladder.py
	$(PYTHON) scripts/check_prose.py
	clang-format-14 --dry-run -Werror $(CXX_SOURCES)
	@$(call configure,tidy,$(WITHOUT_TENSORFLOW) -DMILLPOND_SANITIZE=address -DMILLPOND_UNITY_BUILD=OFF)
	$(PYTHON) scripts/run_clang_tidy.py --build $(BUILD)/tidy --jobs $(JOBS) $(TIDY_SOURCES)

.PHONY: format
format: $(VENV)/.dependencies packages-lint ## Rewrite all sources in the project's format
	$(BIN)/ruff check --fix-only --quiet $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)
	clang-format-14 -i $(CXX_SOURCES)

# --- The documents --------------------------------------------------------------------------------------------

$(VENV)/.docs-tools: pyproject.toml | $(VENV)/.build-dependencies
	$(BIN)/pip install --quiet --group docs
	@touch $@

.PHONY: docs
docs: $(BUILD)/site/.built ## Build the documents as a site in build/site; a broken link or anchor is an error

# With --quiet MkDocs would not count its warnings, and so be less strict.
$(BUILD)/site/.built: $(VENV)/.docs-tools $(DOCUMENTS)
	@mkdir -p $(@D)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(@D) >$(BUILD)/site.log 2>&1 \
	  || { cat $(BUILD)/site.log; exit 1; }
	@touch $@

# --- The wheel ------------------------------------------------------------------------------------------------

$(VENV)/.wheel-tools: pyproject.toml | $(VENV)/.build-dependencies
	$(BIN)/pip install --quiet --group wheel
	@touch $@

.PHONY: wheel
# `make wheel VENV=.venv-3.13 PYTHON=python3.13` builds for another Python.
wheel: $(VENV)/.wheel-tools ## Build a wheel that needs no Debian package, and an sdist, into dist/
	scripts/build_wheel.sh $(BIN)/python $(BUILD) dist $(WHEEL_PLATFORM)
	$(BIN)/python -m build --sdist --no-isolation --outdir dist . >$(BUILD)/dist/sdist.log
	@ls -l dist

.PHONY: wheel-test
wheel-test: ## Install the wheels of dist/ by pip alone on fresh Debians below build/, serve and swap a model (root only)
	$(PYTHON) -m tests.images.try_wheel --work $(BUILD)/wheel-test $(ARGS)

# --- The image, and clean machines ----------------------------------------------------------------------------

.PHONY: check-docker
check-docker: $(MODELS)/.fetched ## Run the Dockerfile's steps without docker, in a fresh Debian below build/ (root only)
	$(PYTHON) -m tests.images.try_dockerfile --work $(BUILD)/docker --model $(MODELS)/basic_pitch

.PHONY: check-clean
check-clean: ## Run `make test` and `make demo` on a fresh Debian below build/, twice each (root only)
	$(PYTHON) -m tests.images.try_clean_machine --work $(BUILD)/clean

.PHONY: clean
clean: ## Remove everything that was built (the virtual environment stays)
	rm -rf $(BUILD) .mypy_cache .pytest_cache .ruff_cache $(VENV)/.installed
