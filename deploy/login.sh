#!/usr/bin/env bash
# Keeps a context of the cluster in containers, so that the command line of this machine works: takes a token at the socket of state, which is
# inside its container. GODEL is the command line (bin/godel).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/env.sh

project=${COMPOSE_PROJECT_NAME:-godel}
godel=${GODEL:-bin/godel}
state=$(docker ps -q --filter "label=com.docker.compose.project=$project" --filter label=com.docker.compose.service=state)
if [ -z "$state" ]; then
  echo "login: no state of $project runs; \`make up\` starts it" >&2
  exit 1
fi
docker exec -e GODEL_CONTEXTS=/tmp/contexts.yaml "$state" sh -c '
  godel context login "$1" --socket /var/lib/godel/godel.sock --state "$2" 2>/dev/null && cat /tmp/contexts.yaml
  code=$?; rm -f /tmp/contexts.yaml*; exit $code' sh "$project" "https://127.0.0.1:${GODEL_PORT:-7700}" | "$godel" context import -
