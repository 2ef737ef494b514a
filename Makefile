# Every target sets up what it needs; `make demo` or `make test` is the only step after a clone.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
MINUTES := 4

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak lint bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv, install everything, check that there is a Java

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@VENV=$(VENV) bash scripts/setup.sh
	@touch $@

demo: $(STAMP) ## serve ads for 30 s on a local Spark session, kill five processes, check everything
	@$(BIN)/penstock demo adserving --kill 5

test: $(STAMP) ## run all the tests in four processes (PYTEST_ARGS="-n 0 -k time" for some, in one)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

soak: $(STAMP) ## simulate failures with fresh seeds (MINUTES=10: for ten minutes)
	@$(BIN)/penstock simulate --minutes $(MINUTES)

lint: $(STAMP) ## check format, lint and types
	@$(BIN)/ruff format --quiet --check . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary

bench: $(STAMP) ## measure the highest rate held and the response times
	@$(BIN)/penstock bench ysb

clean: ## remove the environment, caches and results
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .penstock bench-results \
	  spark-warehouse metastore_db derby.log
	@find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +
