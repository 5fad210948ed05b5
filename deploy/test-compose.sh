#!/usr/bin/env bash
# Tests the cluster in containers as its users see it: from this machine, through the one published address, with the examples,
# and while containers are stopped, paused, cut off, killed and restarted. It has a project and ports of its own, so that a
# cluster of `make up` is not touched. Without a Docker engine it is skipped; with CI=true that is a failure.
#
# Nothing is decided by a time: each wait is for something to become so, and its limit only ends a test that hangs.
set -euo pipefail
cd "$(dirname "$0")/.."

started=$SECONDS
say() { printf 'test-compose %3ds: %s\n' $((SECONDS - started)) "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

if ! docker info >/dev/null 2>&1 || ! { docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; }; then
  if [ "${CI:-}" = true ]; then fail "no Docker engine with compose answers, and CI=true allows no skip"; fi
  say "skipped: no Docker engine with compose answers"
  exit 0
fi

export COMPOSE_PROJECT_NAME=godel-test GODEL_IMAGE=godel:test
export GODEL_PORT=${GODEL_TEST_PORT:-17700} GODEL_METRICS_PORT=${GODEL_TEST_METRICS_PORT:-17800}
export GODEL_YARN_CLIENT_PORT=18032 GODEL_YARN_MASTER_PORT=18030 GODEL_YARN_ADMIN_PORT=18033
export GODEL_YARN_REST_PORT=${GODEL_TEST_REST_PORT:-18088}
rest=http://127.0.0.1:$GODEL_YARN_REST_PORT/ws/v1/cluster
export GODEL_NODE_GRACE=16s GODEL_NODE_ABSENCE=16s GODEL_LOG=info
export GODEL_PUBLISH=0.0.0.0
# Whatever deploy/.env says. Each agent has half a CPU, so that it can be measured how much of it is used.
export GODEL_DISPATCHERS=2 GODEL_BINDERS=2 GODEL_SCHEDULERS=2 GODEL_RESCHEDULERS=2 GODEL_AGENTS=3 GODEL_AGENT_CPUS=0.5
agent_cpu_percent=50
# Milliseconds within which an online unit has to start beside a filler. Generous, because this machine may be busy with anything.
start_ms_max=${GODEL_TEST_START_MS_MAX:-30000}
export GODEL_BINARY=${GODEL_BINARY:-${CARGO_TARGET_DIR:-target}/debug/godel}
dir=$(mktemp -d)
# Commands find the cluster by the contexts that deploy/login.sh keeps, and by no other: that of a user, and, for what only an operator or an
# administrator may do, that of the administrator.
unset GODEL_ADDR
export GODEL_CONTEXTS=$dir/contexts.yaml
submitter=
second=

compose() { deploy/compose.sh --profile simulated "$@"; }
godel() { "$GODEL_BINARY" "$@"; }
admin() { "$GODEL_BINARY" --context "$COMPOSE_PROJECT_NAME-admin" "$@"; }
containers() { docker ps -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --filter "label=com.docker.compose.service=$1"; }

end() {
  code=$?
  touch "$dir/stop"
  if [ -n "$submitter" ]; then wait "$submitter" 2>/dev/null || true; fi
  if [ -n "$second" ]; then kill "$second" 2>/dev/null || true; wait "$second" 2>/dev/null || true; fi
  ip netns delete godel-second 2>/dev/null || true
  if [ "$code" != 0 ]; then
    godel status || true
    godel unit list || true
    compose ps || true
    compose logs --tail 15 2>/dev/null || true
  fi
  deploy/down.sh --volumes --timeout 2 >/dev/null 2>&1 || true
  docker image rm "$GODEL_IMAGE" >/dev/null 2>&1 || true
  rm -rf "$dir"
}
trap end EXIT

# Waits until a command succeeds: until "what" LIMIT COMMAND...
until_so() {
  local what=$1 limit=$2 last=$((SECONDS + $2))
  shift 2
  until "$@" >"$dir/last" 2>&1; do
    if [ "$SECONDS" -ge "$last" ]; then
      cat "$dir/last" >&2
      fail "$what: not so after $limit s"
    fi
    sleep 0.3
  done
}

phase_is() { godel unit wait "$1" --for "phase=$2" --timeout 90s >"$dir/wait" 2>&1 || { cat "$dir/wait" >&2; fail "$1 is not $2"; }; }
log_has() { godel unit logs "$1" | grep >/dev/null -- "$2"; }
# A number of the JSON of a unit, as `running`.
count_of() { godel unit describe "$1" -o json | sed -n "s/^  \"$2\": \([0-9]*\),*$/\1/p"; }
counts() { [ "$(count_of "$1" "$2")" = "$3" ]; }
# The container whose service holds a lease: its address is the container's name.
leader() { godel status -o json | grep -A1 "\"lease\": \"$1\"" | sed -n 's|.*"https://\([0-9a-f]*\):.*|\1|p'; }
other_leads() { local now; now=$(leader "$1"); [ -n "$now" ] && [ "$now" != "$2" ]; }
# Processes in all agents together whose command line has a text.
n_running() {
  local n=0 container
  for container in $(containers agent); do
    n=$((n + $(docker exec "$container" sh -c "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '$1 ' | wc -l")))
  done
  echo "$n"
}
# Those of the service `keep`.
n_processes() { n_running 'sleep 77777[7]'; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }
passed() { [ "$(now_ms)" -ge "$1" ]; }
# CPU time that all agents together have used, with all that they run, in milliseconds.
cpu_ms() {
  local sum=0 container
  for container in $(containers agent); do
    sum=$((sum + $(docker exec "$container" sh -c '
      if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        sed -n "s/^usage_usec \([0-9]*\)$/\1/p" /sys/fs/cgroup/cpu.stat | awk "{print int(\$1 / 1000)}"
      else
        awk "{print int(\$1 / 1000000)}" "/sys/fs/cgroup/cpuacct$(sed -n "s/^[0-9]*:[^:]*cpuacct[^:]*://p" /proc/1/cgroup)/cpuacct.usage"
      fi')))
  done
  echo "$sum"
}
# Time that the CPUs of the machine had nothing to do, in milliseconds; /proc/stat has hundredths of seconds.
idle_ms() { docker exec "$(containers agent | head -1)" awk '/^cpu / {print ($5 + $6) * 10}' /proc/stat; }
processes_are() { local n; n=$(n_processes); echo "$n processes"; [ "$n" = "$1" ]; }

# Submits small units until it is told to stop. What was answered is in the ledger; what was not is asked again under its uid.
submit() {
  local n=0 uid
  while [ ! -e "$dir/stop" ]; do
    n=$((n + 1))
    uid=$(cat /proc/sys/kernel/random/uuid)
    while true; do
      if godel unit submit --name "n-$n" --uid "$uid" --class batch --cpu 10m --memory 8Mi --node-selector '!simulated' \
        -o json -- sh -c 'echo "one of $GODEL_UNIT"' >"$dir/answer" 2>"$dir/refusal"; then
        echo "$uid,n-$n,$(sed -n 's/^ *"revision": \([0-9]*\),$/\1/p' "$dir/answer")" >>"$dir/ledger"
        break
      fi
      # Whatever it was: state, the dispatcher or the way there is away, which is what is tested.
      if [ -e "$dir/stop" ] && [ "$n" -gt 1 ]; then return; fi
      sleep 0.2
    done
    sleep 0.3
  done
}
one_more() {
  local before
  before=$(wc -l <"$dir/ledger")
  until_so "a submission" 60 sh -c "[ \$(wc -l <'$dir/ledger') -gt $before ]"
  phase_is "n-$((before + 1))" completed
}

# Submits an application by REST whose master is a command, without double quotes and backslashes; prints its id. It asks for no CPU: the
# agents have half of one each, and YARN counts whole ones.
yarn_submit() {
  local id post=(curl -fsS -X POST -H 'Content-Type: application/json')
  id=$("${post[@]}" -d '{}' "$rest/apps/new-application?user.name=ann" | sed -n 's/.*"application-id": *"\([^"]*\)".*/\1/p')
  "${post[@]}" -d "{\"application-id\": \"$id\", \"application-name\": \"$1\", \"queue\": \"default\",
    \"resource\": {\"memory\": 64}, \"am-container-spec\": {\"commands\": {\"command\": \"$2\"}}}" "$rest/apps?user.name=ann"
  echo "$id"
}
attempt_is() { admin yarn app describe "$1" | tee "$dir/described" | grep >/dev/null "^appattempt_.* $2 "; }
yarn_state_is() { curl -fsS "$rest/apps/$1/state" | grep >/dev/null "\"state\": *\"$2\""; }
# Registers the master of the first attempt over gRPC, through state: one frame with field 1, the id of the attempt.
yarn_register() {
  local attempt=appattempt_${1#application_}_000001
  local n=${#attempt}
  printf "\\0\\0\\0\\0\\x$(printf %02x $((n + 2)))\\x0a\\x$(printf %02x "$n")%s" "$attempt" |
    curl -sS --http2 -o /dev/null -D - --cacert "$dir/roots.pem" -H "Authorization: Bearer $(godel context token "$COMPOSE_PROJECT_NAME-admin")" \
      -H 'Content-Type: application/grpc' -H 'TE: trailers' --data-binary @- \
      "https://127.0.0.1:$GODEL_PORT/godel.v1.YarnService/RegisterMaster" | tr -d "\r" | grep >/dev/null "^grpc-status: 0$"
}
masters_are() { local n; n=$(n_running 'sleep 88888[8]'); echo "$n masters"; [ "$n" = "$1" ]; }

say "an image of $GODEL_BINARY"
deploy/down.sh --volumes --timeout 2 >/dev/null 2>&1 || true
deploy/image.sh >"$dir/image" 2>&1 || { cat "$dir/image"; fail "the image"; }
compose up -d >"$dir/up" 2>&1 || { cat "$dir/up"; fail "compose up"; }
deploy/wait.sh 120
GODEL=$GODEL_BINARY deploy/login.sh 2>"$dir/login" || { cat "$dir/login"; fail "the login"; }
godel context roots >"$dir/roots.pem"
until_so "all nodes" 60 sh -c "'$GODEL_BINARY' node list | grep -c Ready | grep -qx 103"
say "everything is healthy"

# Each service says for itself whether it is well.
docker exec "$(containers scheduler | head -1)" godel health 127.0.0.1:7803 | grep -qx ok || fail "a scheduler is not well"
! docker exec "$(containers scheduler | head -1)" godel health 127.0.0.1:7801 >/dev/null 2>&1 || fail "nobody is well"

# Who is not let in: plain text, whoever shows nothing, and a member with the token of another role. Only state has the key of the CA.
! GODEL_ADDR=http://127.0.0.1:$GODEL_PORT godel status >"$dir/refused" 2>&1 || fail "plain text is answered"
grep -q 'this port speaks TLS' "$dir/refused" || { cat "$dir/refused"; fail "plain text"; }
curl -sS --cacert "$dir/roots.pem" -o /dev/null -w '%{http_code}' "https://127.0.0.1:$GODEL_METRICS_PORT/metrics" | grep -qx 401 || fail "metrics are for everybody"
curl -fsS --cacert "$dir/roots.pem" -H "Authorization: Bearer $(godel context token "$COMPOSE_PROJECT_NAME-admin")" "https://127.0.0.1:$GODEL_METRICS_PORT/metrics" \
  | grep '^godel_' >/dev/null || fail "there are no metrics"
for container in $(containers scheduler) $(containers agent); do
  docker exec --user root "$container" sh -c '[ ! -e /var/lib/godel/pki ] && [ ! -e /var/lib/godel/godel.sock ] && ! echo x >/run/godel/join/x' 2>/dev/null \
    || fail "a member has what state alone may have"
done
docker exec --user godel-unit "$(containers agent | head -1)" cat /run/godel/join/token >/dev/null 2>&1 && fail "units read the join token of their agent"

# Another host: a network namespace with an agent of its own, which joins with a token.
if [ "$(id -u)" = 0 ] && command -v ip >/dev/null; then
  say "an agent of another host joins"
  ip netns add godel-second
  ip link add godel-first type veth peer name eth0 netns godel-second
  ip address add 10.231.77.1/30 dev godel-first && ip link set godel-first up
  ip -n godel-second address add 10.231.77.2/30 dev eth0 && ip -n godel-second link set eth0 up
  (umask 077; admin node join-token >"$dir/second.token")
  ip netns exec godel-second "$GODEL_BINARY" agent --address "https://10.231.77.1:$GODEL_PORT" --join-file "$dir/second.token" \
    --simulate '1x cpu=4,memory=8Gi,name=second' --set "agent.identity.dir=$dir/second" >"$dir/second.log" 2>&1 &
  second=$!
  until_so "the node of the other host" 60 sh -c "'$GODEL_BINARY' node list | grep '^second' | grep -q Ready"
  kill "$second" && wait "$second" || { cat "$dir/second.log"; fail "the agent of the other host"; }
  second=
  admin node delete second-0000 >/dev/null
fi

# One address, and services that are scaled.
[ "$(docker ps --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --format '{{.Ports}}' | grep -c 127.0.0.1)" = 2 ] \
  || fail "something beside state and the YARN adapter is published"
[ "$(godel scheduler list | grep -c Attached)" = 2 ] || fail "there are not two schedulers"

say "the examples"
# Not that of Ray, which has to be fetched: examples/ray.sh.
for example in examples/*.yaml; do [ "$example" = examples/ray.yaml ] || godel apply -f "$example" >/dev/null; done
for unit in training primes halves ddp pi; do phase_is "$unit" completed; done
for unit in web filler; do phase_is "$unit" running; done
until_so "the web service" 30 log_has web 'serving on .* port 8080'
log_has training 'rank 3 of 4 epoch 4 loss 0.031' || fail "the gang did not train"
[ "$(godel unit logs primes | sed 's/.* are //' | paste -sd+ | sed 's/$/\n/' | bc 2>/dev/null || godel unit logs primes | awk '{n += $NF} END {print n}')" = 9592 ] \
  || fail "the array counted wrongly"
log_has ddp 'rank 2 of 3 has weight 1.000' || fail "ddp did not converge"
log_has pi/0 'pi is about 3.1.*by 3 workers' || fail "the launcher did not gather"
counts halves succeeded 4 || fail "the halves of GPUs"
web=$(containers agent | head -1)
docker exec "$web" python3 -c "import urllib.request as u; print(u.urlopen('http://$(godel unit describe web -o json | sed -n 's/.*"node": "\(.*\)",/\1/p' | head -1):8080').read().decode())" \
  | grep >/dev/null 'hello from' || fail "the web service does not answer"
godel unit cancel web >/dev/null

say "a filler takes what is idle, and an online unit starts all the same"
godel unit scale filler --replicas 3 >/dev/null
phase_is filler running
for round in 1 2 3 4 5; do
  since=$(now_ms)
  used=$(cpu_ms)
  idle=$(idle_ms)
  godel unit submit --name online --class service --cpu 100m --memory 32Mi --node-selector '!simulated' \
    -- python3 -uc 'import time; print("online"); time.sleep(1000)' >/dev/null
  phase_is online running
  start_ms=$(($(now_ms) - since))
  until_so "a line of the online unit" 60 log_has online online
  until_so "ten seconds to measure" 60 passed $((since + 10000))
  used=$(($(cpu_ms) - used))
  # What they could have had: their limit, or less where others keep this machine busy.
  limit=$((($(now_ms) - since) * 3 * agent_cpu_percent / 100))
  possible=$((used + $(idle_ms) - idle))
  if [ "$possible" -gt "$limit" ]; then possible=$limit; fi
  percent=$((used * 100 / possible))
  say "agents used $((used * 100 / limit)) % of their CPUs, $percent % of what was left for them; the online unit ran after $start_ms ms"
  godel unit delete --cancel online >/dev/null
  if [ "$percent" -ge 60 ]; then break; fi
done
[ "$percent" -ge 60 ] || fail "the filler leaves more than 40 % of the agents' CPUs idle, $round times in a row"
[ "$start_ms" -le "$start_ms_max" ] || fail "an online unit took $start_ms ms to start, more than $start_ms_max ms"
godel unit cancel filler >/dev/null

say "applications of YARN"
sleeper=$(yarn_submit sleeper 'echo the master of $CONTAINER_ID is $(id -un) on $NM_HOST; exec sleep 888888')
until_so "the master of $sleeper is started" 90 attempt_is "$sleeper" LAUNCHED
unit=yarn/$(echo "$sleeper" | tr _ -)
GODEL_CONTEXT=$COMPOSE_PROJECT_NAME-admin phase_is "$unit" running
GODEL_CONTEXT=$COMPOSE_PROJECT_NAME-admin until_so "the output of the master" 30 log_has "$unit" 'the master of container_.* is godel-unit on '
yarn_register "$sleeper" || fail "the master of $sleeper is not registered"
yarn_state_is "$sleeper" RUNNING || fail "$sleeper does not run: $(curl -sS "$rest/apps/$sleeper")"
masters_are 1 >/dev/null || fail "the master is not one process"
admin yarn app kill "$sleeper" >/dev/null
until_so "$sleeper is killed" 60 yarn_state_is "$sleeper" KILLED
until_so "its master is gone" 60 masters_are 0
broken=$(yarn_submit broken 'echo no input >&2; exit 7')
until_so "$broken fails" 120 yarn_state_is "$broken" FAILED
admin yarn app describe "$broken" >"$dir/broken"
grep -q 'failed 2 times' "$dir/broken" && grep -q 'exitCode: 7' "$dir/broken" || { cat "$dir/broken"; fail "the diagnostics of $broken"; }
[ "$(admin yarn app list -o json | grep -c '"id": "application_')" = 2 ] || fail "there are not two applications"

say "the rescheduler spreads what was placed on one node"
# Names of the agents' nodes are those of their containers.
home=$(docker inspect -f '{{.Config.Hostname}}' "$(containers agent | head -1)")
others=$(godel node list | awk '$2 == "Ready" && $1 !~ /^simulated/ {print $1}' | grep -v -x "$home")
admin node cordon $others >/dev/null
godel unit submit --name drift --class service --replicas 4 --cpu 10m --memory 8Mi --node-selector '!simulated' -- sleep 666666 >/dev/null
phase_is drift running
admin node uncordon $others >/dev/null
[ "$(godel reschedule policies | grep -c -E '^(pack|spread) ')" = 2 ] || fail "there are not two policies"
admin reschedule plan spread >"$dir/plan"
grep -q '^objective .* 2 → 0$' "$dir/plan" || { cat "$dir/plan"; fail "the plan of spread"; }
admin reschedule run spread >"$dir/run" 2>&1
movement=$(sed -n 's/^movement \([^ ]*\) created.*/\1/p' "$dir/run")
[ -n "$movement" ] || { cat "$dir/run"; fail "no movement"; }
movement_is() { godel reschedule movements describe "$movement" | tee "$dir/movement" | grep >/dev/null "^phase .* $1$"; }
until_so "the end of movement $movement" 120 movement_is done
phase_is drift running
[ "$(godel unit describe drift -o json | grep -c "\"node\": \"$home\"")" -le 2 ] || fail "$(cat "$dir/movement" && godel unit describe drift)"
godel unit cancel drift >/dev/null

say "files and exit codes"
godel unit submit --name codes --class batch --replicas 3 --cpu 10m --memory 8Mi --restart-policy never --node-selector '!simulated' \
  -- sh -c 'echo "$GODEL_ORDINAL" >/tmp/file-$GODEL_ORDINAL; cat /tmp/file-$GODEL_ORDINAL; exit $GODEL_ORDINAL' >/dev/null
until_so "the ends" 60 counts codes failed 2
counts codes succeeded 1 || fail "exit code 0 is not a success"
[ "$(godel unit describe codes -o json | sed -n 's/.*"exit_code": \([0-9]*\),/\1/p' | tr -d '\n')" = 012 ] || fail "exit codes"
[ "$(godel unit logs codes | tr -d '\n')" = "0 | 01 | 12 | 2" ] || fail "logs: $(godel unit logs codes)"

if [ "$(docker info -f '{{.CgroupVersion}}')" = 1 ]; then
  say "limits"
  godel unit submit --name greedy --class batch --cpu 100m --memory 32Mi --restart-policy never --node-selector '!simulated' \
    -- python3 -c 'b = bytearray(200 << 20); b[:] = b"x" * len(b)' >/dev/null
  until_so "the end of what takes too much memory" 60 counts greedy failed 1
  godel unit describe greedy | grep >/dev/null 'out-of-memory' || fail "$(godel unit describe greedy)"
fi

godel unit submit --name keep --class service --replicas 6 --cpu 10m --memory 8Mi --node-selector '!simulated' -- sleep 777777 >/dev/null
phase_is keep running
until_so "six processes" 60 processes_are 6
: >"$dir/ledger"
submit &
submitter=$!
one_more

say "a scheduler stops"
scheduler=$(containers scheduler | head -1)
docker stop -t 5 "$scheduler" >/dev/null
one_more
docker start "$scheduler" >/dev/null

say "the leading binder is paused"
binder=$(leader binder)
docker pause "$binder" >/dev/null
until_so "the other binder" 60 other_leads binder "$binder"
one_more
docker unpause "$binder" >/dev/null

say "the leading dispatcher is killed"
dispatcher=$(leader dispatcher)
docker kill "$dispatcher" >/dev/null
until_so "the other dispatcher" 60 other_leads dispatcher "$dispatcher"
one_more
docker start "$dispatcher" >/dev/null

say "an agent is cut off"
agent=$(containers agent | head -1)
node=$(docker inspect -f '{{.Config.Hostname}}' "$agent")
network=${COMPOSE_PROJECT_NAME}_default
docker network disconnect "$network" "$agent"
is_away() { ! godel unit describe keep -o json | grep >/dev/null "\"node\": \"$node\""; }
until_so "what ran on $node is elsewhere" 90 is_away
phase_is keep running
one_more
docker network connect "$network" "$agent"
until_so "the agent is back" 60 sh -c "'$GODEL_BINARY' node list | grep '^$node ' | grep -q Ready"
until_so "six processes, none twice" 60 processes_are 6

say "state is killed"
state=$(containers state)
docker kill "$state" >/dev/null
docker start "$state" >/dev/null
one_more

say "everything is restarted, one after the other"
for service in state dispatcher binder scheduler yarn rescheduler agent; do
  for container in $(containers "$service"); do
    docker restart -t 15 "$container" >/dev/null
    deploy/wait.sh 120
  done
  one_more
done
deploy/wait.sh 120

say "scaled up and down"
compose up -d --scale scheduler=4 --scale agent=4 >"$dir/up" 2>&1 || { cat "$dir/up"; fail "compose up"; }
deploy/wait.sh 120
until_so "four schedulers" 60 sh -c "'$GODEL_BINARY' scheduler list | grep -c Attached | grep -qx 4"
one_more
compose up -d --scale agent=3 >"$dir/up" 2>&1 || { cat "$dir/up"; fail "compose up"; }

touch "$dir/stop"
wait "$submitter"
submitter=
total=$(wc -l <"$dir/ledger")
say "$total units were submitted meanwhile; nothing is lost, nothing runs twice"
is_over() { [ "$(godel unit list --phase completed | grep -c '^n-')" = "$total" ]; }
until_so "all of them completed" 90 is_over
phase_is keep running
until_so "six processes" 90 processes_are 6
# The node of the agent that was scaled away is deleted, as GODEL_NODE_ABSENCE says.
until_so "103 nodes" 90 sh -c "'$GODEL_BINARY' node list | grep -c -E '^[^ ]+ +(Ready|NotReady)' | grep -qx 103"
admin audit --strict --patience 90s --ledger "$dir/ledger" || fail "the audit"

say "the block of the README, line by line, on a new store"
deploy/down.sh --volumes --timeout 2 >"$dir/down" 2>&1 || { cat "$dir/down"; fail "compose down"; }
export GODEL_AGENTS=2
sed -n '/^## Run in containers/,/^## Licence/p' README.md | sed -n '/^```sh$/,/^```$/p' | sed '/^```/d' >"$dir/block"
[ "$(wc -l <"$dir/block")" -ge 5 ] || fail "the README has no block of containers"
while read -r line <&3; do
  case $line in
    'make logs'*) bash -c 'set -o pipefail; make logs 2>&1 | head -n 1' >"$dir/line" || [ $? = 141 ] || fail "$line" ;;
    *) timeout 300 bash -ec "$line" >"$dir/line" 2>&1 </dev/null || { cat "$dir/line"; fail "$line"; } ;;
  esac
  [ -s "$dir/line" ] || fail "$line: it printed nothing"
  case $line in
    *'unit logs'*) grep -q 'serving on' "$dir/line" || { cat "$dir/line"; fail "$line: no logs"; } ;;
    *simulated*)
      # What the line before it scaled is still there.
      until_so "five schedulers" 90 sh -c "'$GODEL_BINARY' scheduler list | grep -c Attached | grep -qx 5"
      until_so "110 nodes" 90 sh -c "'$GODEL_BINARY' node list | grep -c Ready | grep -qx 110" ;;
    *'make down'*) [ -z "$(docker ps -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")" ] || fail "$line: containers run" ;;
  esac
done 3<"$dir/block"
say "ok"
