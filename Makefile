# Everything a developer or CI needs. `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
BIN := target/release/godel
ARGS ?=

.PHONY: help run build test test-long bench bench-quick bench-bless bench-guard check fmt lint deny doc setup up smoke down

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: build ## place a real production trace on this machine (ARGS=--once: then stop)
	$(BIN) demo $(ARGS)

build: ## the release binaries, target/release/godel and, for `godel bench`, godel-bench
	$(CARGO) build --locked --release -p godel -p godel-bench

test: setup ## all tests (of the long ones a share)
	@echo "== the binaries that the whole-system tests start"
	$(CARGO) build --locked -p godel -p godel-bench
	@echo "== unit, property, integration and whole-system tests"
	$(CARGO) nextest run --locked --workspace --profile ci

test-long: setup ## all tests, with every random kill moment
	$(CARGO) build --locked -p godel -p godel-bench
	GODEL_TEST_LONG=1 $(CARGO) nextest run --locked --workspace --profile ci

bench: build ## every target of speed, with charts, in target/bench (20 minutes; ARGS=--only=P1,P2)
	$(BIN) bench suite $(ARGS)

bench-quick: build ## a subset of it in two minutes
	$(BIN) bench suite --quick $(ARGS)

bench-bless: ## the last table and its charts into docs/benchmarks.md
	sed -i -e '/^<!-- figures -->$$/,/^<!-- end -->$$/{//!d}' -e '/^<!-- figures -->$$/r target/bench/report.md' docs/benchmarks.md
	sed -i 's|^\(!\[.*\](\)\([a-z]*\.svg)\)$$|\1benchmarks/\2|' docs/benchmarks.md
	mkdir -p docs/benchmarks && cp target/bench/*.svg docs/benchmarks/

bench-guard: setup ## instructions of core's scenarios against the committed ones (GODEL_BLESS=1: write them)
	$(CARGO) bench --locked -p godel-model --bench guard

check: fmt lint deny doc ## format, clippy, licences and sources, docs: warnings are errors

fmt: ## formatting
	$(CARGO) fmt --all --check

lint: ## clippy on everything
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: setup ## licences, duplicate versions, unknown sources of dependencies
	cargo-deny --locked check --hide-inclusion-graph bans licenses sources

doc: ## rustdoc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

setup: ## install what the other targets need, if it is missing
	@deploy/setup.sh

up: ## the control plane in containers (deploy/docker-compose.yml)
	deploy/up.sh

smoke: ## a compose cluster works through the loss of its leaders
	deploy/smoke.sh

down: ## stop those containers
	docker-compose -p godel -f deploy/docker-compose.yml down --volumes
