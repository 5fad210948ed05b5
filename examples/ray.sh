#!/usr/bin/env bash
# Runs examples/ray.yaml with the real Ray: makes an image with the PyPI package `ray`, starts a cluster of three agents from it beside whatever else
# runs (project godel-ray, port 27700), prints the log of the head, and removes the cluster. The image godel-ray:local is kept for the next time.
# Needs a Docker engine with compose, pip for Python 3, and four GiB of memory. GODEL_BINARY names a binary of godel to take as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "ray: $*"; }
export COMPOSE_PROJECT_NAME=godel-ray GODEL_PORT=${GODEL_RAY_PORT:-27700} GODEL_METRICS_PORT=${GODEL_RAY_METRICS_PORT:-27800}
export GODEL_AGENTS=3 GODEL_AGENT_CPUS=0
export GODEL_BINARY=${GODEL_BINARY:-${CARGO_TARGET_DIR:-target}/release/godel}
ray=godel-ray:local
dir=$(mktemp -d)
end() {
  GODEL_IMAGE=$ray deploy/compose.sh down --volumes --timeout 5 >/dev/null 2>&1 || true
  docker image rm godel-ray:base >/dev/null 2>&1 || true
  rm -rf "$dir"
}
trap end EXIT

if [ ! -x "$GODEL_BINARY" ]; then
  say "there is no $GODEL_BINARY: run \`make build\`, or set GODEL_BINARY" >&2
  exit 1
fi
say "an image of $GODEL_BINARY"
GODEL_IMAGE=godel-ray:base deploy/image.sh
if ! docker run --rm --entrypoint python3 "$ray" -c 'import ray' >/dev/null 2>&1; then
  version=$(docker run --rm --entrypoint python3 godel-ray:base -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  say "fetching Ray for Python $version"
  python3 -m pip install --quiet --root-user-action=ignore --target "$dir/site" --python-version "$version" --only-binary=:all: \
    --platform "manylinux2014_$(uname -m)" ray
else
  # The packages of the last time, under the binary of this time.
  container=$(docker create "$ray")
  version=$(docker run --rm --entrypoint python3 "$ray" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  docker cp -q "$container:/usr/local/lib/python$version/dist-packages" "$dir/site" 2>/dev/null \
    || docker cp "$container:/usr/local/lib/python$version/dist-packages" "$dir/site" >/dev/null
  docker rm "$container" >/dev/null
fi
printf 'FROM godel-ray:base\nCOPY site /usr/local/lib/python%s/dist-packages\n' "$version" >"$dir/Dockerfile"
docker build -q -t "$ray" "$dir" >/dev/null

say "a cluster of three agents"
export GODEL_IMAGE=$ray
deploy/compose.sh up -d >"$dir/up" 2>&1 || { cat "$dir/up" >&2; exit 1; }
deploy/wait.sh 120
unset GODEL_ADDR
export GODEL_CONTEXTS=$dir/contexts.yaml
GODEL=$GODEL_BINARY deploy/login.sh
"$GODEL_BINARY" unit submit -f examples/ray.yaml
"$GODEL_BINARY" unit wait ray --for phase=running --timeout 2m
"$GODEL_BINARY" unit logs ray/0 --follow
"$GODEL_BINARY" unit wait ray --for finished --timeout 2m || { "$GODEL_BINARY" unit logs ray >&2; exit 1; }
"$GODEL_BINARY" unit list
