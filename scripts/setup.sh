#!/usr/bin/env bash
# Sets up what `make` needs: Python >= 3.11, an environment in .venv, the package, Java >= 17.
# Needs only Python and pip. Installs system packages only on Debian, as root, and only what is missing.
#
# Settings: PYTHON (interpreter), VENV (folder), JAVA_HOME, PENSTOCK_EXTRAS (default "dev").
# For tests: PENSTOCK_DEBIAN_MARK (the file whose presence means Debian), PENSTOCK_JVM_ROOT (where Debian keeps Javas).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
PENSTOCK_DEBIAN_MARK=${PENSTOCK_DEBIAN_MARK:-/etc/debian_version}
export PENSTOCK_JVM_ROOT=${PENSTOCK_JVM_ROOT:-/usr/lib/jvm}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

is_debian_root() { [[ -e $PENSTOCK_DEBIAN_MARK && $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

quietly() { # runs a command; shows what it said only if it failed
  local said
  said=$("$@" 2>&1) || { echo "$said" >&2; return 1; }
}

apt_updated=
apt_install_first() { # installs the first of the given packages that this Debian offers
  local package
  if [[ -z $apt_updated ]]; then
    say "apt-get update"
    quietly apt-get update -qq || say "apt-get update failed; trying with the lists at hand"
    apt_updated=yes
  fi
  for package in "$@"; do
    [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [^\(] ]] || continue
    say "apt-get install $package"
    mkdir -p /usr/share/man/man1 2>/dev/null || true # slim images lack it, and the JRE's alternatives want it
    quietly apt-get install -y -qq --no-install-recommends "$package" && return 0
  done
  return 1
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

make_venv() {
  local python=$1 aside
  if "$python" -c 'import venv, ensurepip' 2>/dev/null && "$python" -m venv "$VENV" >/dev/null; then
    return
  fi
  # Debian splits ensurepip off into python3-venv. virtualenv brings its own pip, and --target keeps it
  # out of the system's Python (which PEP 668 forbids to touch).
  say "this Python has no ensurepip; using virtualenv"
  rm -rf "$VENV"
  aside=$(mktemp -d)
  if "$python" -m pip install --quiet --target "$aside" virtualenv >&2 &&
    PYTHONPATH=$aside "$python" -m virtualenv --quiet "$VENV"; then
    rm -rf "$aside"
    return
  fi
  rm -rf "$aside" "$VENV"
  if is_debian_root && apt_install_first python3-venv && "$python" -m venv "$VENV"; then
    return
  fi
  die "cannot create $VENV: install python3-venv (Debian) or virtualenv, then run make again"
}

# The same search that the library does when it starts Spark.
find_java() { "$1" -I src/penstock/engine/spark/java.py 2>/dev/null; }

ensure_java() {
  find_java "$1" >/dev/null && return
  if is_debian_root; then
    say "no Java 17 or newer found"
    apt_install_first openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless \
      default-jre-headless || true
    find_java "$1" >/dev/null && return
  fi
  die "$("$1" -I src/penstock/engine/spark/java.py 2>&1 >/dev/null)"
}

if [[ -x $VENV/bin/python ]] && new_enough "$VENV/bin/python"; then
  python=$VENV/bin/python
else
  python=$(find_python) || die "Python 3.11 or newer is needed; set PYTHON to it"
fi
ensure_java "$python" # before the long download, so that a missing Java is said at once

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  say "creating $VENV with $python"
  rm -rf "$VENV"
  make_venv "$python"
fi
say "installing penstock[${PENSTOCK_EXTRAS:-dev}] into $VENV (Spark is large: this can take minutes)"
"$VENV/bin/python" -m pip install --quiet \
  --constraint constraints.txt --editable ".[${PENSTOCK_EXTRAS:-dev}]" >&2
say "ready"
