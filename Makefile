# Each target sets up what it needs first; see .ci/setup.sh. `make` alone lists them.

PYTHON_BIN   := .venv/bin/python
DEMO_OUT     ?= runs/demo
DEMO_SECONDS ?= 90
DEMO_ARGS    ?= preview --headless --fresh --job both --seconds $(DEMO_SECONDS) --out $(DEMO_OUT)
PYTEST_ARGS  ?=
DEFAULTS_OUT ?= runs/defaults
DECODER_STEPS ?= 6000
PRETRAIN_ARGS ?=
DECODER_ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo defaults test lint setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo "Variables: DEMO_SECONDS=20  DEMO_OUT=runs/demo  PYTEST_ARGS=...  REFERENCE=1 (with PyTorch)"
	@echo "           PYTHON=python3.12  SKIP_SYSTEM=1 (never install system packages)"
	@echo "           DEFAULTS_OUT=runs/defaults  DECODER_STEPS=6000  PRETRAIN_ARGS=...  DECODER_ARGS=..."
	@echo "           DINOVISION_XR_RUNTIME=FOLDER (where tests/xr keep Monado)"

demo: ## train and render without a window for DEMO_SECONDS, record into DEMO_OUT
	@sh .ci/setup.sh demo
	$(PYTHON_BIN) run.py $(DEMO_ARGS)
	@echo "Recorded into $(DEMO_OUT):" && ls -1 $(DEMO_OUT)

# The weights that ship are those of seed 0, whatever the other seeds' figures.
defaults: ## train the shipped encoder and decoder anew into DEFAULTS_OUT, with figures (needs a GPU)
	@sh .ci/setup.sh demo
	$(PYTHON_BIN) run.py pretrain --steps 8000 --decay-steps 12000 \
	  --out $(DEFAULTS_OUT)/encoder.safetensors --evidence $(DEFAULTS_OUT)/encoder $(PRETRAIN_ARGS)
	set -e; for seed in 0 1 2; do \
	  decoder=$(DEFAULTS_OUT)/decoder-$$seed.safetensors; \
	  $(PYTHON_BIN) run.py train --data assets/photos/train --encoder $(DEFAULTS_OUT)/encoder.safetensors \
	    --steps $(DECODER_STEPS) --seed $$seed --out $(DEFAULTS_OUT)/decoder-$$seed.training.safetensors \
	    --weights $$decoder $(DECODER_ARGS); \
	  $(PYTHON_BIN) run.py eval --data assets/photos/val --encoder $(DEFAULTS_OUT)/encoder.safetensors \
	    --checkpoint $$decoder --out $(DEFAULTS_OUT)/decoder-$$seed; \
	done
	cp $(DEFAULTS_OUT)/decoder-0.safetensors $(DEFAULTS_OUT)/decoder.safetensors
	cd $(DEFAULTS_OUT) && sha256sum encoder.safetensors decoder.safetensors | tee SHA256SUMS
	@echo "To ship them: cp $(DEFAULTS_OUT)/encoder.safetensors $(DEFAULTS_OUT)/decoder.safetensors assets/"

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
