# make demo    the whole thread on a real server, stock parsers against ours (SESSION=FILE, SEED=N, BLOCK=N)
# make test    every test
# make lint    ruff and mypy
# make bench   the prefix-cache hit rate of whole agent traces (TRACE=FILE, VARIATION=R, SEEDS=N)
#
# All of them take ENGINE=vllm (default) or ENGINE=sglang, and first bring its environment up to date: the engine in
# $(PRR_CACHE) (shared by checkouts; default .cache/), the models' tokenizers beside it, and the checkout's own overlay in
# .venv/$(ENGINE). See tools/setup_engine.py.

PYTHON ?= python3
export PRR_CACHE ?= $(CURDIR)/.cache

ENGINE ?= vllm
VENV := .venv/$(ENGINE)
RUN := $(VENV)/bin/python
PYTEST_ARGS ?=

.PHONY: help setup models demo test lint format bench clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup:
	@$(PYTHON) tools/setup_engine.py $(ENGINE) >/dev/null

models: setup
	@$(RUN) tools/build_models.py

demo: models
	$(RUN) benchmarks/demo.py --engine $(ENGINE) $(if $(BLOCK),--block-size $(BLOCK)) $(if $(SESSION),--session "$(SESSION)") $(if $(SEED),--seed $(SEED))

test: models
	$(RUN) -m pytest $(PYTEST_ARGS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

bench: models
	$(RUN) benchmarks/hit_rate.py $(if $(TRACE),--trace "$(TRACE)") $(if $(VARIATION),--variation $(VARIATION)) $(if $(SEEDS),--seeds $(SEEDS))

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache
