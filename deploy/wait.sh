#!/usr/bin/env bash
# Waits until every container of the cluster is healthy, at most as many seconds as the first argument says (120).
set -euo pipefail
cd "$(dirname "$0")/.."

. deploy/env.sh

limit=${1:-120}
project=${COMPOSE_PROJECT_NAME:-godel}
end=$((SECONDS + limit))
while true; do
  # What has ended is listed as well, until it is started again. A container may go between both calls.
  ids=$(docker ps -qa --filter "label=com.docker.compose.project=$project" --filter label=com.docker.compose.oneoff=False)
  waits=$(docker inspect -f '{{.Name}} {{if .State.Running}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}' $ids 2>/dev/null | grep -v ' healthy$' || true)
  if [ -n "$ids" ] && [ -z "$waits" ]; then exit 0; fi
  if [ "$SECONDS" -ge "$end" ]; then
    echo "wait: not healthy after $limit s:" >&2
    echo "${waits:-no containers of $project}" >&2
    docker inspect -f '{{.Name}}: {{range .State.Health.Log}}{{.Output}}{{end}}' $ids 2>/dev/null | grep -v ': ok' | tail -5 >&2 || true
    exit 1
  fi
  sleep 0.5
done
