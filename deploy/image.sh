#!/usr/bin/env bash
# Builds the image GODEL_IMAGE (godel:local). GODEL_BINARY names a binary that is taken as it is; without it target/release/godel
# is built. GODEL_PUT names a file to which the binary is copied as well.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/env.sh

say() { echo "image: $*"; }
image=${GODEL_IMAGE:-godel:local}

if ! docker info >/dev/null 2>&1; then
  say "no Docker engine answers; start it (\`systemctl start docker\`) or set DOCKER_HOST" >&2
  exit 1
fi
binary=${GODEL_BINARY:-}
if [ -z "$binary" ]; then
  target=${CARGO_TARGET_DIR:-target}
  say "building $target/release/godel"
  ${CARGO:-cargo} build --locked --release -p godel
  binary=$target/release/godel
fi
base=$(deploy/base.sh)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
# The line tables stay here: a trace from the image names lines once FILE.debug is copied beside its binary.
deploy/install-binary.sh "$binary" "$context/godel" --no-lines
# The binary needs the C library of the machine that built it, or a newer one.
for part in state member agent; do cp "deploy/$part-entry.sh" "$context/godel-$part"; done
docker build -q -t "$image" --build-arg "BASE=$base" -f deploy/Dockerfile "$context" >/dev/null
if ! docker run --rm "$image" --version >/dev/null; then
  say "$binary does not run on $base: build it on a machine with the C library of Debian 12 or an older one" >&2
  exit 1
fi
if [ -n "${GODEL_PUT:-}" ]; then install -D -m 755 "$binary" "$GODEL_PUT"; fi
say "built $image of $(docker image inspect -f '{{.Size}}' "$image" | numfmt --to=iec) on $base"
