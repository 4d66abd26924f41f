# Sourced by the other scripts and by bin/: finds Python, makes .venv and keeps it up to date. POSIX sh.
# Sets $root and $python; `ensure runtime` or `ensure dev` installs what is missing and is quick when nothing is.

need_major=3 need_minor=11

fail() { # MESSAGE REMEDY
  echo "cometmq: $1" >&2
  [ -z "${2:-}" ] || echo "  $2" >&2
  exit 1
}

find_python() { # prints the first interpreter that is new enough
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c "import sys; sys.exit(sys.version_info < ($need_major, $need_minor))" 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
    found="${found:-} $candidate=$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo '?')"
  done
  fail "Python $need_major.$need_minor or newer is needed; found:${found:- none}" \
    "Install one, or name it: PYTHON=/path/to/python $0"
}

ensure() { # runtime|dev
  level=$1
  python=$root/.venv/bin/python
  wanted="$level $(cat "$root/pyproject.toml" "$root/setup.py" "$root/spark/_native.c" | cksum) $root"
  for have in runtime dev; do # the development environment holds the runtime
    [ "$have" = runtime ] && [ "$level" = dev ] && continue
    stamp=$root/.venv/.cometmq-$have
    if [ -x "$python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$have ${wanted#* }" ]; then
      [ "$level" = runtime ] || "$root/scripts/tree" "$root/.venv"
      return 0
    fi
  done
  mkdir -p "$root/build"
  log=$root/build/setup.log
  : > "$log"
  if ! { [ -x "$python" ] && "$python" -c "import sys; sys.exit(sys.version_info < ($need_major, $need_minor))"; } 2>/dev/null; then
    base=$(find_python) || exit 1
    echo "cometmq: making .venv with $base" >&2
    rm -rf "$root/.venv"
    "$base" -m venv "$root/.venv" >> "$log" 2>&1 ||
      fail "could not make .venv with $base (details in build/setup.log)" \
        "On Debian and Ubuntu: apt-get install python3-venv"
  fi
  target=$root
  [ "$level" = runtime ] || target="$root[dev]"
  echo "cometmq: installing the $level environment into .venv (once; a minute at most)" >&2
  if ! "$python" -m pip install --disable-pip-version-check --no-input -q -e "$target" >> "$log" 2>&1; then
    grep -m 2 'ERROR: [A-Z]' "$log" >&2 || tail -n 3 "$log" >&2
    fail "could not install the $level environment (details in build/setup.log)" \
      "Is the package index reachable from here? A mirror is set with PIP_INDEX_URL, a proxy with HTTPS_PROXY."
  fi
  [ "$level" = runtime ] || "$root/scripts/tree" "$root/.venv"
  echo "$wanted" > "$root/.venv/.cometmq-$level"
}
