# make setup         an engine's environment, made once
# make demo          the whole thread on a real server, stock parsers against ours (SESSION=FILE, SEED=N, BLOCK=N)
# make picture       what `make demo` measured, drawn for README and pages: docs/demo.json, docs/demo-*.svg (DEMO=FILE)
# make test          the tests of one engine but for the long ones, in at most ten minutes (PYTEST_ARGS="tests/common")
# make test-all      every test on both engines, laws at full effort (TESTED=1: less what `make test` has just passed)
# make seed-models   the five seed models of docs/models.md on real servers, with more settings than in `make test`
# make lint          ruff, mypy and the direction of imports (import-linter); `make format` mends what ruff can
# make matrix        what stock vLLM, stock SGLang and ours keep of a turn: out/matrix.html (MODEL=NAME)
# make bench         the prefix-cache hit rate of whole agent traces (TRACE=FILE, VARIATION=R, SEEDS=N); PART=all: the next too
# make bench-parsers CPU time per token of every parser, ours and the engines' (FAMILY=NAME, REPEATS=N); also PART=parsers
# make conformance   every parser on every fixture of the corpus, and the round trip (FAMILY=NAME)
# make newest        the newest release of each engine (NEWEST=vllm: of one) at parser level: hooks found, tests passed
# make templates     the bridge against every chat template of a corpus of 786 (ONLY=PART_OF_NAME)
# make splice-cost   what a splice costs over the length of the history: ours, full render and encode, `renderers`
# make soak          64 clients on a server whose shared store fails in every way (REQUESTS=N, FAULT=NAME; needs redis-server)
# make fuzz          the laws of parsing under a coverage-guided fuzzer (FUZZ_RUNS=N, FUZZ_JOBS=N)
# make docs          the site, made of docs/ and the docstrings, every link checked: out/site/index.html
# make X ENGINE=sglang: any of them on SGLang instead of vLLM
#
# All of them first bring the environment of their engine up to date: the engine in
# $(PRR_CACHE) (shared by checkouts; default .cache/), the models' tokenizers beside it, and the checkout's own overlay in
# .venv/$(ENGINE). See tools/setup_engine.py.

PYTHON ?= python3
export PRR_CACHE ?= $(CURDIR)/.cache

ENGINE ?= vllm
VENV := .venv/$(ENGINE)
RUN := $(VENV)/bin/python
PYTEST_ARGS ?=

.PHONY: help setup models demo test lint format bench bench-hit-rate bench-parsers conformance fuzz clean matrix

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup:
	@$(PYTHON) tools/setup_engine.py $(ENGINE) >/dev/null

models: setup
	@$(RUN) tools/build_models.py

demo: models
	$(RUN) benchmarks/demo.py --engine $(ENGINE) $(if $(BLOCK),--block-size $(BLOCK)) $(if $(SESSION),--session "$(SESSION)") $(if $(SEED),--seed $(SEED))

.PHONY: picture docs
picture:
	@$(PYTHON) benchmarks/picture.py $(DEMO)

docs:
	@$(PYTHON) tools/setup_engine.py docs >/dev/null
	NO_MKDOCS_2_WARNING=1 .venv/docs/bin/python -m mkdocs build --strict --quiet

# client packages for tests/parity/test_clients.py: a small environment of their own
.PHONY: clients
clients:
	@$(PYTHON) tools/setup_engine.py clients >/dev/null

test: models clients
	$(RUN) -m pytest --durations=15 -m "not slow" $(PYTEST_ARGS)

# Laws are tried at full effort once, and what needs no engine runs once: neither hangs on one.
ON_SGLANG := tests/sglang tests/parity tests/harness/test_keeper.py tests/docs/test_figures.py
.PHONY: test-all
test-all: both-engines clients
	.venv/vllm/bin/python -m pytest --durations=15 --hypothesis-profile full $(if $(TESTED),-m "slow or hypothesis or scaled") $(PYTEST_ARGS)
	.venv/sglang/bin/python -m pytest --durations=15 $(or $(PYTEST_ARGS),$(ON_SGLANG))

.PHONY: seed-models
seed-models: models
	$(RUN) -m pytest tests/vllm/test_seed_models.py tests/vllm/test_rare_turns.py $(PYTEST_ARGS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -c "from importlinter.cli import lint_imports_command as run; run()" --no-cache

format: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# PART=hit-rate (default), parsers, or all
PART ?= hit-rate
bench: $(if $(filter parsers,$(PART)),bench-parsers,$(if $(filter all,$(PART)),bench-hit-rate bench-parsers,bench-hit-rate))

bench-hit-rate: models
	$(RUN) benchmarks/hit_rate.py --engine $(ENGINE) $(if $(BLOCK),--block-size $(BLOCK)) $(if $(TRACE),--trace "$(TRACE)") $(if $(VARIATION),--variation $(VARIATION)) $(if $(SEEDS),--seeds $(SEEDS))

# Both engines' parsers, each in its own environment; SGLANG= leaves SGLang's out.
SGLANG ?= 1
.PHONY: both-engines
both-engines:
	@$(PYTHON) tools/setup_engine.py vllm >/dev/null
	@$(if $(SGLANG),$(PYTHON) tools/setup_engine.py sglang >/dev/null)
	@.venv/vllm/bin/python tools/build_models.py

bench-parsers: both-engines
	.venv/vllm/bin/python benchmarks/parsers.py $(if $(FAMILY),--family $(FAMILY)) $(if $(REPEATS),--repeats $(REPEATS)) $(if $(SGLANG),,--no-sglang)

conformance: both-engines
	.venv/vllm/bin/python benchmarks/conformance.py $(if $(FAMILY),--family $(FAMILY)) $(if $(SGLANG),,--runs prr prr_eager prr_in_vllm vllm)

matrix: both-engines
	.venv/vllm/bin/prr matrix $(if $(MODEL),--model $(MODEL)) $(if $(SGLANG),,--engine vllm)

.PHONY: newest
newest:
	@$(PYTHON) tools/newest.py $(NEWEST)

FUZZ_RUNS ?= 1000000
fuzz:
	@$(PYTHON) tools/setup_engine.py fuzz >/dev/null
	.venv/fuzz/bin/python tests/fuzz/fuzz_formats.py --runs $(FUZZ_RUNS) $(if $(FUZZ_JOBS),--jobs $(FUZZ_JOBS))

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache

.PHONY: soak
soak: models
	$(RUN) benchmarks/soak.py $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(FAULT),--fault $(FAULT))

.PHONY: templates splice-cost
templates: models
	$(RUN) benchmarks/templates.py $(if $(ONLY),--only "$(ONLY)") --show

splice-cost: models
	$(RUN) benchmarks/splice_cost.py
