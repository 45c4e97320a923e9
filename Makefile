# Everything a newcomer types. All paths are relative, so a clone may lie anywhere.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo test lint bench clean
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

test: .venv/.dev lint
	@sh scripts/debian-packages --optional $$(cat tests/system-packages.txt)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.dev
	@sh scripts/debian-packages --optional $$(cat tests/system-packages.txt)
	$(BIN)/python -m benchmarks $(NAME)

clean:
	rm -rf .venv

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
