#!/usr/bin/env bash
# Stops the containers of the cluster, and removes them and their network. Arguments go to compose, behind `down`: `deploy/down.sh --volumes`.
set -euo pipefail
cd "$(dirname "$0")/.."

# On a busy machine a network can have endpoints for a moment after its containers are gone: the network then goes at the next try.
for try in 1 2 3 4 5; do
  if deploy/compose.sh --profile simulated down "$@"; then exit 0; fi
  sleep "$try"
done
exit 1
