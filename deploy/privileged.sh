# Sourced: says whether agents can be privileged, if nobody has (GODEL_AGENT_PRIVILEGED).
if [ -z "${GODEL_AGENT_PRIVILEGED:-}" ]; then
  if docker run --rm --user root --privileged "${GODEL_IMAGE:-godel:local}" --version >/dev/null 2>&1; then
    export GODEL_AGENT_PRIVILEGED=true
  else
    echo "this engine starts no privileged containers: agents run without control groups, and nothing is limited" >&2
    export GODEL_AGENT_PRIVILEGED=false
  fi
fi
