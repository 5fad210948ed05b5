#!/usr/bin/env bash
# Stops the containers of the cluster, and removes them and their network. Arguments go to compose, behind `down`: `deploy/down.sh --volumes`.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/env.sh

if deploy/compose.sh --profile simulated down "$@"; then exit 0; fi
# Docker 20.10 can count an endpoint of a network whose container is gone, until it is restarted itself: it then refuses to remove the network, and
# compose leaves the volumes as well. Nothing is wrong with the cluster: the next one uses the same network.
project=${COMPOSE_PROJECT_NAME:-godel}
of_project=(--filter "label=com.docker.compose.project=$project")
if [ -n "$(docker ps -qa "${of_project[@]}")" ] || [ "$(docker network inspect -f '{{len .Containers}}' "${project}_default")" != 0 ]; then exit 1; fi
case " $* " in *' --volumes '*) docker volume ls -q "${of_project[@]}" | xargs -r docker volume rm >/dev/null ;; esac
echo "down: everything is removed but the network ${project}_default, which the engine holds for nobody until it is restarted" >&2
