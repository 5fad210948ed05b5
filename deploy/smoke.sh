#!/usr/bin/env bash
# Starts the compose cluster, places work, kills the leading dispatcher and binder, places more, audits, stops.
set -euo pipefail
cd "$(dirname "$0")"

compose() { docker-compose -p godel -f docker-compose.yml "$@"; }
godel() { compose exec -T state godel "$@"; }
trap 'compose down --volumes >/dev/null 2>&1' EXIT

./up.sh
godel unit submit --name before --class service --replicas 50 --cpu 500m --memory 1Gi
godel unit wait before --for phase=running --timeout 60s
godel unit submit --name gang --class gang --replicas 20 --cpu 4 --gpu 1:A10
godel unit wait gang --for phase=running --timeout 60s

for service in dispatcher-1 binder-1 binder-2; do compose kill -s KILL "$service"; done
compose up -d
godel unit submit --name after --class service --replicas 50 --cpu 500m --memory 1Gi
godel unit wait after --for phase=running --timeout 60s
godel audit --strict --patience 60s
echo "smoke: ok"
