#!/usr/bin/env bash
# Runs compose on deploy/docker-compose.yml with whichever compose this machine has: `deploy/compose.sh ps`.
# COMPOSE_PROJECT_NAME names another cluster than `godel`.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/env.sh

if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  echo "compose: neither \`docker compose\` nor \`docker-compose\` is installed; on Debian: apt-get install docker-compose" >&2
  exit 1
fi
. deploy/agents.sh
exec "${compose[@]}" -p "${COMPOSE_PROJECT_NAME:-godel}" -f deploy/docker-compose.yml ${files[@]+"${files[@]}"} "$@"
