#!/usr/bin/env bash
# Keeps a context of the cluster in containers, so that the command line of this machine works: gets a token from the socket of state, which is
# inside its container. GODEL is the command line (bin/godel).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/env.sh

project=${COMPOSE_PROJECT_NAME:-godel}
godel=${GODEL:-bin/godel}
state=$(docker ps -q --filter "label=com.docker.compose.project=$project" --filter label=com.docker.compose.service=state)
if [ -z "$state" ]; then
  echo "login: state of $project does not run; \`make up\` starts it" >&2
  exit 1
fi
# What the login prints is shown only if it fails: the import says where the context leads.
context=$(docker exec -e GODEL_CONTEXTS=/tmp/contexts.yaml "$state" sh -c '
  if said=$(godel context login "$1" --socket /var/lib/godel/godel.sock --state "$2" 2>&1); then cat /tmp/contexts.yaml; code=0
  else code=$?; echo "$said" >&2; fi
  rm -f /tmp/contexts.yaml*; exit $code' sh "$project" "https://127.0.0.1:${GODEL_PORT:-7700}")
printf '%s\n' "$context" | "$godel" context import -
