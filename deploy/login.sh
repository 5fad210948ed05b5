#!/usr/bin/env bash
# Keeps two contexts of the cluster in containers, so that the command line of this machine works: one of its administrator, whose name ends in
# `-admin`, with a token from the socket of state, which is inside its container; and one of a principal with role `user`, who is called as the
# user of this machine and becomes the current context. GODEL is the command line (bin/godel).
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
address=https://127.0.0.1:${GODEL_PORT:-7700}
# What the login prints is shown only if it fails: the import says where the context leads.
context=$(docker exec -e GODEL_CONTEXTS=/tmp/contexts.yaml "$state" sh -c '
  if said=$(godel context login "$1" --socket /var/lib/godel/godel.sock --state "$2" 2>&1); then cat /tmp/contexts.yaml; code=0
  else code=$?; echo "$said" >&2; fi
  rm -f /tmp/contexts.yaml*; exit $code' sh "$project-admin" "$address")
printf '%s\n' "$context" | "$godel" context import -
if ! "$godel" --context "$project" whoami >/dev/null 2>&1; then
  token=$("$godel" --context "$project-admin" token create "$(id -un)" --role user)
  printf '%s\n' "$token" | "$godel" login "$project" --token-file - --state "$address"
  "$godel" context use "$project"
fi
