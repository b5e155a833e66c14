# Everything is built by cargo; nothing else is needed but make and a C compiler.

CARGO ?= cargo
DEMO_ARGUMENTS ?=

.PHONY: demo test bench matrix fmt

## Train a small model, sync it into rollout engines of another sharding, check every element.
demo:
	$(CARGO) build --release -p reshard-cli
	target/release/reshard demo $(DEMO_ARGUMENTS)

## Everything that must hold before a change lands.
test:
	scripts/test

## Every demo configuration: ZeRO stages x trainer shapes x rollout shapes x models, shared and separate processes.
matrix:
	$(CARGO) build --release --quiet -p reshard-cli
	scripts/matrix target/release/reshard

## Planning speed on a real model's shapes, as medians.
bench:
	$(CARGO) build --release --quiet -p reshard-cli
	scripts/bench target/release/reshard
	$(CARGO) run --release --quiet -p reshard-plan --example growth
	$(CARGO) run --release --quiet -p reshard-plan --example rounds

fmt:
	$(CARGO) fmt
