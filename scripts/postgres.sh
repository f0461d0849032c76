#!/usr/bin/env bash
# A throw-away PostgreSQL for tests and development: postgres.sh start|stop|url DIR [PORT=17432]
#
# `start` makes a cluster in DIR when there is none, waits until it answers and prints the URL for
# MINTYARD_TEST_POSTGRES; both commands may be repeated. It listens on 127.0.0.1 and on a Unix socket in DIR, trusts
# local users, and keeps fsync and checksums on. The server refuses root: there it runs as the user postgres, who
# must be able to reach DIR. PGBIN names other binaries. The project works without any of this.
set -euo pipefail

usage() { echo "usage: $0 start|stop|url DIR [PORT]" >&2; exit 2; }
[ $# -ge 2 ] || usage
command=$1
dir=$(realpath -m "$2")
port=${3:-17432}
[[ $port =~ ^[0-9]{1,5}$ ]] || usage

bin=${PGBIN:-$(ls -d /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin 2>/dev/null | sort -V | tail -1 || true)}
[ -n "$bin" ] || bin=$(dirname "$(command -v pg_ctl || true)")
[ -x "$bin/pg_ctl" ] || { echo "no PostgreSQL server found: install one or set PGBIN" >&2; exit 1; }

as_owner() {
  if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=/ "$@"
  else
    "$@"
  fi
}

url() { echo "postgresql://hub@/hub?host=$dir&port=$port"; }

start() {
  mkdir -p "$dir"
  [ "$(id -u)" != 0 ] || chown postgres: "$dir"
  cd "$dir"
  if ! as_owner "$bin/pg_ctl" -D "$dir/data" status >/dev/null 2>&1; then
    [ -e "$dir/data/PG_VERSION" ] ||
      as_owner "$bin/initdb" -D "$dir/data" -U hub -A trust -E UTF8 --locale=C --data-checksums >"$dir/initdb.log"
    as_owner "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 60 start \
      -o "-h 127.0.0.1 -p $port -k $dir -c max_connections=100 -c shared_buffers=128MB" >/dev/null ||
      { tail -5 "$dir/log" >&2; exit 1; }
  fi
  psql=("$bin/psql" -qAtX -h "$dir" -p "$port" -U hub -d postgres)
  [ "$(as_owner "${psql[@]}" -c "select 1 from pg_database where datname = 'hub'")" = 1 ] ||
    as_owner "${psql[@]}" -c 'create database hub'
  url
}

stop() {
  [ -d "$dir" ] || return 0
  cd "$dir"
  as_owner "$bin/pg_ctl" -D "$dir/data" status >/dev/null 2>&1 || return 0
  as_owner "$bin/pg_ctl" -D "$dir/data" -m fast -w stop >/dev/null
}

case $command in
  start) start ;;
  stop) stop ;;
  url) url ;;
  *) usage ;;
esac
