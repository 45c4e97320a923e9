# Everything a newcomer types. All paths are relative, so a clone may lie anywhere.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo test test-oldest-ray lint bench compiled clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      a Ray cluster on this machine, a program on it, and everything gone again"
	@echo "make install   only make the environment: $(BIN)/shoal"
	@echo "make test      install what the tests need, then check style, types and behaviour"
	@echo "make bench     run every benchmark; make bench NAME=cli runs one"
	@echo "make clean     remove the environment"

install: .venv/.installed

demo: install
	@bash examples/demo.sh

test: .venv/.dev lint compiled
	@sh scripts/debian-packages --optional $$(cat tests/system-packages.txt)
	@# In the order of their names: sorted by their number of tests, the longest would come last.
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# The oldest Ray that clusters may run, in an environment of its own.
OLDEST_RAY := 2.52.0
test-oldest-ray: .venv-oldest-ray/.installed
	.venv-oldest-ray/bin/python -m pytest tests/engine tests/controller/test_real_cluster.py $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.dev compiled
	@sh scripts/debian-packages --optional $$(cat tests/system-packages.txt)
	$(BIN)/python -m benchmarks $(NAME)

# As `pip install` leaves packages. Simulated users may not write here, and would compile all of it
# each time they start `shoal`.
compiled: .venv/.dev
	@$(BIN)/python -m compileall -q src tests

clean:
	rm -rf .venv .venv-oldest-ray

# The stamps come last in their recipes: an interrupted install is made anew, not trusted.
.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh scripts/debian-packages python3-venv
	@echo "installing Shoal and Ray into .venv (a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --editable '.[embedded]'
	@touch $@

.venv/.dev: .venv/.installed pyproject.toml
	@echo "installing what the tests need into .venv"
	@$(BIN)/python -m pip install --quiet --editable '.[embedded,dev]'
	@touch $@

.venv-oldest-ray/.installed: pyproject.toml
	@echo "installing Ray $(OLDEST_RAY) and what its tests need into .venv-oldest-ray"
	@$(PYTHON) -m venv .venv-oldest-ray
	@.venv-oldest-ray/bin/python -m pip install --quiet --editable '.[embedded,dev]' \
	  'ray[default]==$(OLDEST_RAY)'
	@touch $@
