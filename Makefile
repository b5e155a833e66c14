# Rust needs cargo, make and a C compiler; the Python package a Python of 3.11 or newer besides, and finds the rest itself.

CARGO ?= cargo
DEMO_ARGUMENTS ?=

.PHONY: demo test test-python wheel docs bench matrix fmt

## Train a small model, sync it into rollout engines of another sharding, check every element.
demo:
	$(CARGO) build --release -p reshard-cli
	target/release/reshard demo $(DEMO_ARGUMENTS)

## Everything that must hold before a change lands.
test:
	scripts/test

## The Python package alone.
test-python:
	scripts/test-python

## The Python package's wheel, program included, into target/wheels.
wheel:
	PYTHON=$$(scripts/python) && export PYTHON && scripts/wheel

## Every demo configuration (ZeRO stages x trainer shapes x rollout shapes x models, shared and separate processes), and every
## checkpoint of a real engine.
matrix:
	$(CARGO) build --release --quiet -p reshard-cli
	scripts/matrix target/release/reshard
	RESHARD_EVERY_CASE=1 scripts/test-python tests/checkpoints

## Planning speed on a real model's shapes, and conversions of checkpoints beside cp, as medians.
bench:
	$(CARGO) build --release --quiet -p reshard-cli
	scripts/bench target/release/reshard
	$(CARGO) run --release --quiet -p reshard-plan --example growth
	scripts/bench-python
	$(CARGO) build --release --quiet -p reshard-formats --example make_zero
	scripts/bench-checkpoints target/release/reshard
	$(CARGO) run --release --quiet -p reshard-formats --example convert_rate -- "$${TMPDIR:-/tmp}" 2048 3
	$(CARGO) run --release --quiet -p reshard-plan --example rounds

## The API reference of both languages.
docs:
	$(CARGO) doc --workspace --no-deps
	scripts/docs-python

fmt:
	$(CARGO) fmt
	python=$$(scripts/python) && cd python && $$python -m ruff format .
