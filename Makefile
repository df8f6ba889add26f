# The target test-oldest installs packages into .venv-oldest, and all other targets install packages into
# .venv. If .venv is complete, only test-browser and contract install further packages. `make quickstart` and
# `make parsing` install the package and its dependencies. All other targets that use .venv also install the
# development tools and the optional libraries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyTorch is installed first and separately, so that pip can find a CPU build.
TORCH ?= --constraint constraints.txt torch
# Use --no-compile, because otherwise pip compiles all modules to bytecode, which takes a minute. With --no-compile, Python compiles each module at its first import.
INSTALL := pip install --quiet --disable-pip-version-check --no-compile

# With `worksteal`, each test process runs consecutive tests, so that tests of a file can share their
# fixtures. Each test process uses one thread. Start one process for each processor, but at most 4 processes,
# because each process imports torch and collects all tests, which takes 14 seconds.
WORKERS := -n logical --maxprocesses 4 --dist worksteal

# Remove PYTHONDONTWRITEBYTECODE from the environment, so that Python caches the compiled modules, because each test process imports 4,000 modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart parsing test test-all test-browser test-oldest lint bench install contract docs

install: $(VENV)/installed

$(VENV)/runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) $(TORCH)
	$(BIN)/$(INSTALL) --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed: $(VENV)/runtime
	$(BIN)/$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	touch $@

quickstart: $(VENV)/runtime
	$(BIN)/vaswani train configuration/numbers.yaml --resume true
	$(BIN)/python scripts/examples/quickstart.py checkpoints/numbers

# Trains a parser and prints its F1 on held-out sentences.
parsing: $(VENV)/runtime
	$(BIN)/vaswani train configuration/parsing.yaml --resume true
	$(BIN)/python scripts/examples/quick_trees.py 1000 --seed 2 --split test > checkpoints/parsing/held_out.txt
	$(BIN)/vaswani evaluate checkpoints/parsing --trees checkpoints/parsing/held_out.txt

# Runs the tests without the marker `slow`, and lists the 40 slowest of these tests.
test: install
	$(BIN)/python -m pytest $(WORKERS) -m "not slow" --durations=40

# Runs all tests, including the slow tests.
test-all: install
	$(BIN)/python -m pytest $(WORKERS) --durations=40

# Runs the tests of all pages in headless Chromium. pytest prints the reason of each skipped test, for example
# that Chromium is not installed.
test-browser: install
	$(BIN)/$(INSTALL) --constraint constraints.txt playwright
	$(BIN)/python -m pytest $(WORKERS) tests/browser tests/demo

# Runs tests with the oldest versions that pyproject.toml allows, in a separate environment. The tests cover
# whole runs, killed and resumed runs, damaged runs, and private names. Use Python 3.11 or 3.12, because some of
# the oldest versions have no wheels for Python 3.13.
OLDEST := tests/test_private_names.py tests/test_oldest.py tests/training/test_training.py tests/training/test_killed.py \
	tests/training/test_damaged.py tests/training/test_explosion.py

test-oldest:
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/$(INSTALL) --constraint constraints-oldest.txt torch
	.venv-oldest/bin/$(INSTALL) --constraint constraints-oldest.txt --editable '.[ctranslate2]' \
		pytest pytest-timeout pytest-xdist peft tensorboard
	VASWANI_OLDEST=1 .venv-oldest/bin/python -m pytest $(WORKERS) $(OLDEST)

# Runs the model tests of transformers on the models of the package. Only the source distribution of
# transformers contains the model tests.
contract: install
	$(BIN)/$(INSTALL) parameterized
	version=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("transformers"))') && \
	{ test -d build/transformers-$$version || { mkdir -p build && \
		$(BIN)/pip download --quiet --no-deps --no-binary :all: --dest build transformers==$$version && \
		tar xzf build/transformers-$$version.tar.gz -C build; }; } && \
	TRANSFORMERS_SOURCE="$(CURDIR)/build/transformers-$$version" $(BIN)/python -m pytest $(WORKERS) -W ignore tests/model/test_contract.py

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# Builds the manual in docs/_build without network access. The target fails if Sphinx prints a warning.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build

bench: install
	$(BIN)/python scripts/benchmarks/training.py
