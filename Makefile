# Each target sets up what it needs first; see .ci/setup.sh. `make` alone lists them.

PYTHON_BIN   := .venv/bin/python
DEMO_OUT     ?= runs/demo
DEMO_SECONDS ?= 90
DEMO_ARGS    ?= preview --headless --fresh --job both --seconds $(DEMO_SECONDS) --out $(DEMO_OUT)
PYTEST_ARGS  ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' Makefile
	@echo "Variables: DEMO_SECONDS=20  DEMO_OUT=runs/demo  PYTEST_ARGS=...  REFERENCE=1 (with PyTorch)"
	@echo "           PYTHON=python3.12  SKIP_SYSTEM=1 (never install system packages)"
	@echo "           DINOVISION_XR_RUNTIME=FOLDER (where tests/xr keep Monado)"

demo: ## train and render without a window for DEMO_SECONDS, record into DEMO_OUT
	@sh .ci/setup.sh demo
	$(PYTHON_BIN) run.py $(DEMO_ARGS)
	@echo "Recorded into $(DEMO_OUT):" && ls -1 $(DEMO_OUT)

test: ## run the tests; REFERENCE=1 compares with PyTorch as well
	@sh .ci/setup.sh test
	@$(PYTHON_BIN) -m pytest $(PYTEST_ARGS) || { status=$$?; \
	  [ $$status -ne 5 ] || echo "make test: pytest collected no tests" >&2; exit $$status; }

lint: ## check style, format and types
	@sh .ci/setup.sh lint
	$(PYTHON_BIN) -m ruff check
	$(PYTHON_BIN) -m ruff format --check
	$(PYTHON_BIN) -m mypy

setup: ## install what the other targets need, and run nothing
	@sh .ci/setup.sh test

clean: ## remove .venv, caches and build output; recordings in runs/ stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find app engine models assets tests -name __pycache__ -type d -prune -exec rm -rf {} +
