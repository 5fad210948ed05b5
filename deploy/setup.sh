#!/usr/bin/env bash
# Installs what `make test` (and in it `make test-compose`), `make test-yarn`, `make check` and `make bench-guard` need beyond the Rust toolchain, and
# says what it does.
set -euo pipefail

say() { echo "setup: $*"; }

if ! command -v cargo-nextest >/dev/null; then
  say "installing the test runner cargo-nextest"
  cargo install --locked cargo-nextest
fi
if ! command -v cargo-deny >/dev/null; then
  say "installing cargo-deny (a few minutes, once)"
  cargo install --locked cargo-deny
fi
if ! command -v mkfs.ext4 >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing e2fsprogs (mkfs.ext4, for the power-loss test of the store)"
  apt-get update -qq && apt-get install -y -qq e2fsprogs
fi
if ! { command -v etcd && command -v etcdctl; } >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing etcd-server and etcd-client (the tests of the store in an etcd)"
  # A service of that name need not run: tests start their own.
  apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends etcd-server etcd-client
fi
if ! command -v valgrind >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing valgrind (counts the instructions of make bench-guard)"
  apt-get update -qq && apt-get install -y -qq valgrind
fi
if ! docker compose version >/dev/null 2>&1 && ! command -v docker-compose >/dev/null \
  && docker info >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing docker-compose (starts the cluster in containers)"
  apt-get update -qq && apt-get install -y -qq --no-install-recommends docker-compose
fi
if ! command -v curl >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing curl (calls the YARN adapter in make test-compose)"
  apt-get update -qq && apt-get install -y -qq --no-install-recommends curl ca-certificates
fi
if ! command -v javac >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing a JDK (Hadoop's clients and Spark, for make test-yarn)"
  apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jdk-headless
fi
for component in rustfmt clippy; do
  if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
    say "adding the toolchain component $component"
    rustup component add "$component"
  fi
done
