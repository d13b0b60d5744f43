# The two commands of the README, and what CI runs. Everything happens in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Named by what it installs, and where: a changed pin is set up anew, and so is the copy of a checkout, whose .venv runs
# the original. A set-up that is there needs no network.
SETUP := $(shell { cat constraints.txt pyproject.toml seqarena/__init__.py; echo '$(CURDIR)'; } | sha256sum | cut -c1-16)
READY := .venv/ready-$(SETUP)
EXTRAS := .venv/extras-$(SETUP)
# The tests that are run again with shape annotations checked at every call, which takes a third of their time.
SHAPE_TESTS := tests/common tests/lra tests/pretraining tests/qa tests/summarization tests/vqa tests/scripts/test_figures.py
# The tests' tensors are tiny: a second thread would only be waited for.
test test-extras: export OMP_NUM_THREADS = 1
# Each test that starts a process would else compile the sources anew, where the environment forbids to keep bytecode.
test test-extras: export PYTHONDONTWRITEBYTECODE =
test test-extras: export PYTHONPYCACHEPREFIX = $(CURDIR)/.venv/bytecode

.PHONY: quickstart test test-extras mutations kills fuzz tables check format clean

quickstart: $(READY)
	$(BIN)/seqarena quickstart

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not extras"

test-extras: $(EXTRAS)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "extras and not interpreted"
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m interpreted
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not extras and not unhooked" --jaxtyping-packages=seqarena,beartype.beartype $(SHAPE_TESTS)

# Not in CI: a quarter of an hour on two cores. The score is in docs/reliability.md.
mutations: $(READY)
	$(BIN)/python -m tests.mutations

# Not in CI, whose tests kill runs 25 times.
kills: $(READY)
	$(BIN)/python -m tests.kills

# Not in CI, whose tests try a hundred damaged copies of each kind of file.
fuzz: $(EXTRAS)
	$(BIN)/python -m tests.fuzz

# The tables of the documents and the page docs/index.html, from the results that are committed.
tables: $(READY)
	$(BIN)/python -m tests.tables

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "seqarena needs Python 3.11, 3.12 or 3.13; $$($(PYTHON) --version) was found; set PYTHON=python3.11" >&2; exit 2; }
	@grep -qsF '$(CURDIR)/.venv/' $(BIN)/pip || rm -rf .venv
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

$(EXTRAS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,tensorboard,lamb,transformers,regions,triton,ray,browser]'
	@touch $@
