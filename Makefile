# Targets for developers and CI. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
BIN := target/release/godel
PREFIX ?= /usr/local
ARGS ?=
# Most tests wait for processes most of the time: one more of them than there are CPUs.
TEST_THREADS ?= $(shell echo $$(($$(nproc) + 1)))
# Not empty: the cluster in containers has been tested.
COMPOSED ?=
CORE = $(shell sed -n 's/^name = "\(godel-.*\)"/-p \1/p' core/*/Cargo.toml)

.PHONY: help run build install bins test test-build test-suite test-core test-yarn test-long bench reschedule-demo bench-quick bench-bless bench-guard check fmt lint deny doc setup up down reset logs test-compose

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: ## start a cluster on this machine and place a production trace (ARGS=--once: then stop)
	$(CARGO) build --locked --release -p godel
	$(BIN) demo $(ARGS)

build: ## build the release binaries target/release/godel and godel-bench (for `godel bench`)
	$(CARGO) build --locked --release -p godel -p godel-bench

install: build ## install godel and godel-bench in PREFIX/bin (/usr/local), their line tables beside them, and make the system users
	deploy/install-binary.sh $(BIN) $(DESTDIR)$(PREFIX)/bin/godel
	deploy/install-binary.sh $(BIN)-bench $(DESTDIR)$(PREFIX)/bin/godel-bench
	$(if $(DESTDIR),,deploy/users.sh)

test: test-suite ## run all tests (a part of the long ones)
	$(if $(COMPOSED),,@echo "== the cluster in containers"; deploy/test-compose.sh)

bins: setup
	@echo "== the binaries that the whole-system tests start"
	$(CARGO) build --locked -p godel -p godel-bench

test-build: bins
	@echo "== unit, property, integration and whole-system tests: built"
	$(CARGO) nextest run --locked --workspace --profile ci --no-run

test-suite: bins
	@echo "== unit, property, integration and whole-system tests"
	$(CARGO) nextest run --locked --workspace --profile ci --test-threads $(TEST_THREADS)

test-core: setup ## run the tests of the decisions alone: no sockets, no disk
	$(CARGO) nextest run --locked $(CORE)

test-compose: bins ## test the cluster in containers (needs a Docker engine; 6 minutes)
	deploy/test-compose.sh

test-long: bins ## run all tests, with every random kill moment
	GODEL_TEST_LONG=1 $(CARGO) nextest run --locked --workspace --profile ci --test-threads $(TEST_THREADS)

test-yarn: bins ## test YARN's side with Hadoop's clients and Spark jobs (Java 17; downloads 317 MB once; ARGS: cases, those of Flink only there)
	python3 integration-tests/yarn/clients.py prepare target/yarn-clients
	$(if $(findstring flink,$(ARGS)),python3 integration-tests/yarn/flink.py prepare target/yarn-clients)
	GODEL_YARN_CLIENTS=$(CURDIR)/target/yarn-clients $(CARGO) nextest run --locked --workspace --run-ignored only --no-capture \
		-E 'package(godel-yarn) and test(hadoops_own_clients)'
	python3 integration-tests/yarn/jobs.py --godel $${CARGO_TARGET_DIR:-target}/debug/godel --clients target/yarn-clients $(ARGS)

bench: build ## measure every performance target, with charts, in target/bench (20 minutes; ARGS=--only=P1,P2)
	$(BIN) bench suite $(ARGS)

bench-quick: build ## measure a subset in two minutes
	$(BIN) bench suite --quick $(ARGS)

bench-bless: ## copy the last table and its charts into docs/benchmarks.md
	sed -i -e '/^<!-- figures -->$$/,/^<!-- end -->$$/{//!d}' -e '/^<!-- figures -->$$/r target/bench/report.md' docs/benchmarks.md
	sed -i 's|^\(!\[.*\](\)\([a-z]*\.svg)\)$$|\1benchmarks/\2|' docs/benchmarks.md
	mkdir -p docs/benchmarks && cp target/bench/*.svg docs/benchmarks/

reschedule-demo: ## print what each policy of the rescheduler does on real traces (ARGS="--only spread"; some minutes)
	$(CARGO) run --locked --release -q -p godel-core-rescheduler --example reschedule-demo -- $(ARGS)

bench-guard: setup ## compare instruction counts of core's scenarios with the committed ones (GODEL_BLESS=1: update them)
	$(CARGO) bench --locked -p godel-model --bench guard

check: fmt lint deny doc ## check format, clippy, licences and sources, docs; warnings are errors

fmt: ## check formatting
	$(CARGO) fmt --all --check

lint: ## run clippy on everything
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: setup ## check licences, duplicate versions and sources of dependencies
	cargo-deny --locked check --hide-inclusion-graph bans licenses sources

doc: ## build rustdoc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

setup: ## install missing tools of the other targets
	@deploy/setup.sh

up: ## start a cluster in containers, wait until it is healthy (settings: deploy/.env)
	deploy/up.sh

down: ## stop the containers and keep the store
	deploy/down.sh

reset: ## stop the containers and delete the store
	deploy/down.sh --volumes

logs: ## follow the logs of the containers
	deploy/compose.sh --profile simulated logs --follow --tail 100
