#!/usr/bin/env bash
# Installs a binary without its symbols as FILE, and its line tables as FILE.debug beside it: traces of panics name lines while both are in
# one directory. Usage: deploy/install-binary.sh BINARY FILE [--no-lines]
set -euo pipefail
binary=$(realpath "${1:?the binary}") file=${2:?the file to install}

if ! command -v objcopy >/dev/null; then
  echo "install: objcopy is not here; it comes with binutils (apt-get install binutils)" >&2
  exit 1
fi
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
name=$(basename "$file")
objcopy --only-keep-debug --compress-debug-sections=zlib "$binary" "$made/$name.debug"
(cd "$made" && objcopy --strip-all --add-gnu-debuglink="$name.debug" "$binary" "$name")
install -D -m 755 "$made/$name" "$file"
if [ "${3:-}" != --no-lines ]; then install -D -m 644 "$made/$name.debug" "$file.debug"; fi
