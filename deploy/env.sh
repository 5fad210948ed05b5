# Sourced by the other scripts: settings of deploy/.env that the environment does not have.
if [ -f deploy/.env ]; then
  while IFS='=' read -r name value; do
    case $name in '' | '#'*) continue ;; esac
    if [ -z "${!name+set}" ]; then export "$name=$value"; fi
  done < deploy/.env
fi
