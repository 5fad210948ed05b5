#!/usr/bin/env bash
# Builds the image godel:local and starts deploy/docker-compose.yml.
# The base image is debian:bookworm-slim if the engine has it or can pull it; otherwise one made here with
# debootstrap (needs root and Debian's packages).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "up: $*"; }
base=debian:bookworm-slim

if ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull -q "$base" >/dev/null 2>&1; then
  base=godel-base:bookworm
  if ! docker image inspect "$base" >/dev/null 2>&1; then
    say "debian:bookworm-slim is not available; building $base with debootstrap"
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; }
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase bookworm "$root" >/dev/null
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import - "$base" >/dev/null
  fi
fi

say "building target/release/godel"
cargo build --locked --release -p godel
context=$(mktemp -d)
cp target/release/godel "$context/godel"
cp -r data "$context/data"
docker build -q -t godel:local --build-arg "BASE=$base" -f deploy/Dockerfile "$context"
rm -rf "$context"

docker-compose -p godel -f deploy/docker-compose.yml up -d
say "next: docker-compose -p godel -f deploy/docker-compose.yml exec state godel status"
