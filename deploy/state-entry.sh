#!/bin/sh
# Starts the state of a container, and keeps a join token for each role in a directory of its own below /run/godel/tokens: only containers of that
# role have it, as a read-only volume. A token is replaced every week, while the older one is still valid.
tokens=/run/godel/tokens

# Whether the token of a role is less than a week old and known to state.
is_good() {
  file=$tokens/$1/token
  [ -n "$(find "$file" -mtime -7 2>/dev/null)" ] || return 1
  id=$(cut -d. -f3 "$file")
  godel join-token list -o json | grep >/dev/null "\"id\": \"$id\""
}

make_tokens() {
  # At the socket, the user that runs state is the administrator.
  export GODEL_ADDR=unix:/var/lib/godel/godel.sock GODEL_LOG=error
  umask 077
  until godel join-token list >/dev/null 2>&1; do sleep 0.2; done
  while true; do
    pause=3600
    for role in dispatcher binder scheduler rescheduler yarn agent; do
      is_good "$role" && continue
      case $role in
        agent) verb='node join-token --names *' ;;
        *) verb="join-token --role $role" ;;
      esac
      # The words of the verb are split, but `*` is no file name. What fails is tried again soon: containers of the role wait for their token.
      (set -f; godel $verb --uses 1000 --ttl 30d >"$tokens/$role/new") && mv "$tokens/$role/new" "$tokens/$role/token" || pause=1
    done
    sleep "$pause"
  done
}

make_tokens &
exec godel "$@"
