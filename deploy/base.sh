#!/usr/bin/env bash
# Prints the name of the base image of godel:local, and makes it if the engine has none: debian:bookworm-slim if the engine
# has it or can pull it, otherwise one made with debootstrap (needs root and Debian's packages), which is kept.
set -euo pipefail

say() { echo "base: $*" >&2; }
slim=debian:bookworm-slim
own=godel-base:bookworm

has() { docker image inspect "$1" >/dev/null 2>&1; }

if has "$own"; then echo "$own"; exit; fi
if has "$slim" || timeout 60 docker pull -q "$slim" >/dev/null 2>&1; then echo "$slim"; exit; fi

say "$slim is not available; making $own with debootstrap (two minutes, once)"
if ! command -v debootstrap >/dev/null; then
  apt-get update -qq >&2 && apt-get install -y -qq debootstrap >&2
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# Python is there for the examples; the image needs nothing else.
debootstrap --variant=minbase --include=python3 bookworm "$root" >&2
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*.log "$root"/usr/share/{doc,man,info,locale,lintian}
find "$root" -name __pycache__ -prune -exec rm -rf {} +
tar -C "$root" -c . | docker import -c 'CMD ["/bin/sh"]' - "$own" >/dev/null
echo "$own"
