# Each target sets up all it needs: a .venv beside this file, with the versions of constraints.txt.
PYTHON ?= python3.11
OLDEST ?= python3.10
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow test-oldest lint format clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py --out demo-run

# Two files of tests at a time; a file's tests share what they trained.
test: lint
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile

# Ray is needed here alone; where it cannot be had, its tests are skipped and say so.
test-slow: $(STAMP)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]"
	$(BIN)/python -m pytest -q -m slow --timeout 3600

# The oldest Python and the oldest versions that are allowed. This torch comes with CUDA on Linux: 6 GB.
test-oldest:
	$(OLDEST) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
		-e . pytest pytest-timeout hypothesis
	$(VENV)-oldest/bin/python -m pytest -q -m "not slow" -W ignore::DeprecationWarning

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and by its pinned version: a later, looser requirement then finds it installed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(VENV)-oldest demo-run .mypy_cache .ruff_cache .pytest_cache
