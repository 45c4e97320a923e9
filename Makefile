# The commands of a newcomer. All paths are relative, so a clone can be anywhere.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo check test test-oldest-ray lint docs bench compiled clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      start a Ray cluster on this machine, run a program on it, and remove it"
	@echo "make install   create the environment only: $(BIN)/shoal"
	@echo "make check     style, types, import contracts and pure tests: a few minutes"
	@echo "make test      everything: install what the tests need, then run make lint and all tests"
	@echo "make docs      build the documentation in build/docs"
	@echo "make bench     run every benchmark; make bench NAME=cli runs one"
	@echo "make clean     remove the environment"

install: .venv/.installed

demo: install
	@bash examples/demo.sh

# For people who are working: nothing here starts Ray, a simulated host or a browser.
check: lint
	$(BIN)/python -m pytest -q -n 2 -m "not ray and not simcloud and not workers and not processes" $(ARGS)

test: .venv/.dev lint compiled
	@sh scripts/debian-packages --optional $$(cat tests/system-packages.txt)
	@# In the order of their names: sorted by their number of tests, the longest would run last.
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# The oldest Ray that clusters may run, in a separate environment.
OLDEST_RAY := 2.52.0
test-oldest-ray: .venv-oldest-ray/.installed
	.venv-oldest-ray/bin/python -m pytest tests/ray_runtime tests/controller/test_real_cluster.py $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_words.py
	$(BIN)/shellcheck $$(git ls-files '*.sh') scripts/debian-packages
	@$(MAKE) --no-print-directory docs

docs: .venv/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: .venv/.dev compiled
	@sh scripts/debian-packages --optional $$(cat tests/system-packages.txt)
	$(BIN)/python -m benchmarks $(NAME)

# As `pip install` does. Simulated users have no write permission here and would compile every
# module each time they run `shoal`.
compiled: .venv/.dev
	@$(BIN)/python -m compileall -q src adaptdl/src tests

clean:
	rm -rf .venv .venv-oldest-ray build

# Each stamp is written last, so an interrupted install is repeated.
.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh scripts/debian-packages python3-venv
	@echo "installing Shoal and Ray into .venv (a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --editable '.[embedded]'
	@touch $@

.venv/.dev: .venv/.installed pyproject.toml adaptdl/pyproject.toml
	@echo "installing what the tests need into .venv"
	@$(BIN)/python -m pip install --quiet --editable '.[embedded,train,dev,test-providers]' --editable ./adaptdl
	@touch $@

.venv-oldest-ray/.installed: pyproject.toml
	@echo "installing Ray $(OLDEST_RAY) and what its tests need into .venv-oldest-ray"
	@$(PYTHON) -m venv .venv-oldest-ray
	@.venv-oldest-ray/bin/python -m pip install --quiet --editable '.[embedded,dev]' \
	  'ray[default]==$(OLDEST_RAY)'
	@touch $@
