# Sourced by compose.sh: how agents get control groups that they may write, which limits are made of. Sets `files`, and
# GODEL_AGENT_PRIVILEGED unless somebody has.
files=()
image=${GODEL_IMAGE:-godel:local}
if [ "$(docker info -f '{{.CgroupVersion}}' 2>/dev/null)" = 1 ]; then
  # With version 1 the engine gives them to whoever mounts them.
  files=(-f deploy/cgroup-v1.yml)
  : "${GODEL_AGENT_PRIVILEGED:=false}"
elif [ -z "${GODEL_AGENT_PRIVILEGED:-}" ] && docker image inspect "$image" >/dev/null 2>&1; then
  # With version 2 only to privileged containers.
  if docker run --rm --user root --privileged "$image" --version >/dev/null 2>&1; then
    GODEL_AGENT_PRIVILEGED=true
  else
    echo "this engine starts no privileged containers: agents run without control groups, and nothing is limited" >&2
    GODEL_AGENT_PRIVILEGED=false
  fi
fi
export GODEL_AGENT_PRIVILEGED
