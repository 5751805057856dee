#!/usr/bin/env bash
# Set up a machine for Penstock: a virtual environment with all Python packages; from Debian's
# packages, where they are missing or old and can be installed, Java 17, PostgreSQL 15 with wal2json
# and PgBouncer; and, for the tests, the newest minor releases of PostgreSQL 16, 17 and 18.
#
# usage: scripts/install.sh VENV        PYTHON names the interpreter (default: python3)
set -euo pipefail
venv=$1
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n  fix: %s\n' "$1" "$2" >&2; exit 2; }

# --- Debian packages ---------------------------------------------------------------------------
java_is_good() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  command -v "$java" >/dev/null || return 1
  local major
  major=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
  [ "${major:-0}" -ge 17 ]
}

missing=()
java_is_good || missing+=(openjdk-17-jre-headless)
[ -x /usr/lib/postgresql/15/bin/postgres ] || missing+=(postgresql-15)
[ -e /usr/lib/postgresql/15/lib/wal2json.so ] || missing+=(postgresql-15-wal2json)
[ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null || missing+=(pgbouncer)
# Postgres refuses to run as root; a user namespace is how it runs all the same.
command -v unshare >/dev/null || missing+=(util-linux)

as_root=()
if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
may_install() { command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >"$logs/apt" 2>&1; }

if [ ${#missing[@]} -gt 0 ]; then
  by_hand="Install these Debian packages: ${missing[*]}"
  command -v apt-get >/dev/null || fail "needed and not here: ${missing[*]}" \
    "Install Java 17 or newer, PostgreSQL 15 with wal2json and PgBouncer (in Debian: ${missing[*]})"
  may_install || fail "needed and not here: ${missing[*]}" "As root: apt-get install ${missing[*]}"
  say "Installing ${missing[*]}"
  # Debian would start a PostgreSQL server at once; ours are embedded, and it only takes a port.
  if [ ! -d /etc/postgresql-common ]; then
    "${as_root[@]}" mkdir -p /etc/postgresql-common
    printf 'create_main_cluster = false\n' | "${as_root[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
  fi
  apt update || { tail -n 20 "$logs/apt" >&2; fail "apt-get update failed" "$by_hand"; }
  apt install -y --no-install-recommends "${missing[@]}" ||
    { tail -n 20 "$logs/apt" >&2; fail "apt-get install failed" "$by_hand"; }
  # Debian starts a pooler, too, where systemd runs; the tests start their own.
  if [[ " ${missing[*]} " == *" pgbouncer "* ]] && [ -d /run/systemd/system ]; then
    "${as_root[@]}" systemctl disable --now pgbouncer >/dev/null 2>&1 || true
  fi
fi
if may_install; then
  # The tests are for what a fresh machine gets. Where that cannot be had they run on what is here.
  # An older server may be here although wal2json was missing a moment ago, so this is always done.
  say "Looking for a newer minor release of PostgreSQL 15"
  { apt update && apt install -y --no-install-recommends --only-upgrade postgresql-15 postgresql-client-15 postgresql-15-wal2json; } ||
    say "PostgreSQL 15 could not be upgraded, and stays $(/usr/lib/postgresql/15/bin/postgres --version)"
fi

# --- Python packages ---------------------------------------------------------------------------
command -v "$python" >/dev/null || fail "there is no $python" "Install Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old" "Install Python 3.11 or newer, or name one: make install PYTHON=python3.12"

say "Installing Python packages into $venv (about a minute and a half on a first run)"
if [ ! -x "$venv/bin/python" ]; then
  # Debian's Python comes without ensurepip unless python3-venv is installed: our own pip will do.
  "$python" -m venv "$venv" >/dev/null 2>&1 || "$python" -m venv --clear --without-pip "$venv"
fi
if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  pip=("$venv/bin/python" -m pip)
else
  "$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip" "Install Debian's package python3-pip"
  pip=("$python" -m pip --python "$venv/bin/python")
fi
"${pip[@]}" install -q --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' ||
  fail "pip could not install the Python packages" "See its message above; the network may be down"

# --- servers for the tests ----------------------------------------------------------------------
# Says itself what is missing and how to try again; everything but the tests works without.
"$venv/bin/python" scripts/fetch_postgres.py || true

# --- Spark's classes ---------------------------------------------------------------------------
say "Preparing Spark's classes, which halves the time in which Spark starts"
"$venv/bin/python" -m penstock.spark.class_archive 2>/dev/null ||
  say "Spark's classes could not be prepared: everything works, and starts more slowly"
