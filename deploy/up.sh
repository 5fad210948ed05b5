#!/usr/bin/env bash
# Builds the image, puts the binary at bin/godel, starts the cluster of deploy/docker-compose.yml, waits until it is healthy and says where
# it is. The first build takes ten minutes and more; GODEL_BINARY names a binary that is there already.
# Arguments go to compose, before `up`: `deploy/up.sh --profile simulated`.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/env.sh

GODEL_PUT=bin/godel deploy/image.sh
deploy/compose.sh "$@" up -d
deploy/wait.sh

deploy/login.sh

port=${GODEL_PORT:-7700}
cat <<TEXT

The cluster runs. Its API is at https://127.0.0.1:$port (gRPC), metrics of state at https://127.0.0.1:${GODEL_METRICS_PORT:-7800}/metrics.
Clients of YARN (docs/yarn.md) use 127.0.0.1:${GODEL_YARN_CLIENT_PORT:-8032}, its REST API is at http://127.0.0.1:${GODEL_YARN_REST_PORT:-8088}/ws/v1/cluster;
masters call port ${GODEL_YARN_MASTER_PORT:-8030}, administrators port ${GODEL_YARN_ADMIN_PORT:-8033}. Try:
  export PATH=\$PWD/bin:\$PATH
  godel status
  godel apply -f examples/batch-array.yaml && godel unit logs primes
  godel yarn queue list
  deploy/compose.sh up -d --scale scheduler=5 --scale agent=10 --scale dispatcher=2
\`make logs\` follows the logs, \`make down\` stops the cluster and keeps its store, \`make reset\` deletes the store too.
TEXT
