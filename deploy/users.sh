#!/usr/bin/env bash
# Makes the system users of an installation: godel, as whom services run, and godel-unit, as whom units run that name no user. The latter
# owns nothing, not even a home. Users that are there stay as they are.
set -euo pipefail

say() { echo "users: $*"; }
if [ "$(id -u)" != 0 ]; then
  say "not root: make the users with \`sudo deploy/users.sh\`"
  exit 0
fi
nologin=$(command -v nologin || echo /usr/sbin/nologin)
make_user() {
  local name=$1 home=$2
  if ! id -u "$name" >/dev/null 2>&1; then
    useradd --system --user-group --no-create-home --home-dir "$home" --shell "$nologin" "$name"
    say "made $name"
  fi
}
make_user godel /var/lib/godel
make_user godel-unit /nonexistent
