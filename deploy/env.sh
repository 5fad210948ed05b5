# Sourced by the other scripts: settings of deploy/.env that the environment does not have.
if [ -f deploy/.env ]; then
  # A last line without its end counts too.
  while IFS='=' read -r name value || [ -n "$name" ]; do
    case $name in '' | '#'*) continue ;; esac
    if [ -z "${!name+set}" ]; then export "$name=$value"; fi
  done < deploy/.env
fi
