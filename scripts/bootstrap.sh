#!/usr/bin/env bash
# Prints the path of a pinned uv, installing it into the cache first where it is missing.
# Needs Python 3.11 or newer; as root on Debian it installs what Python's venv lacks.
set -euo pipefail
VERSION=0.13.9
dir=${GRPO_CACHE_DIR:-$HOME/.cache/grpo-operator}/uv-$VERSION
if [ ! -x "$dir/bin/uv" ]; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "python3 is $(python3 --version 2>&1 || echo missing); version 3.11 or newer is needed" >&2
    exit 1
  }
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || {
      echo "Python's venv module is missing; install it (on Debian: apt-get install python3-venv) and run this again" >&2
      exit 1
    }
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-venv; } >&2
  fi
  temporary=$(mktemp -d "${dir%/*}/uv.XXXXXX" 2>/dev/null || { mkdir -p "${dir%/*}" && mktemp -d "${dir%/*}/uv.XXXXXX"; })
  trap 'rm -rf "$temporary"' EXIT
  python3 -m venv "$temporary" >&2
  "$temporary/bin/python" -m pip install --quiet "uv==$VERSION" >&2
  mkdir -p "$dir/bin"
  # uv is one static binary: the environment around it is not needed.
  mv -f "$temporary/bin/uv" "$dir/bin/uv"
fi
echo "$dir/bin/uv"
