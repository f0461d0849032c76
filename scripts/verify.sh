#!/usr/bin/env bash
# Everything, without a limit of time, with the results in docs/results/: verify.sh PYTHON
# SEEDS, KILLS and MINTYARD_TEST_POSTGRES are taken from the environment; each step's last lines are kept, with commit and time.
# STEPS names the steps to run, all by default: test postgres sim mutants crash bench
set -euo pipefail
python=$1
results=docs/results
mkdir -p "$results"

step() {
  local name=$1
  shift
  [[ " ${STEPS:-$name} " = *" $name "* ]] || return 0
  echo "== $name"
  {
    echo "$(git rev-parse --short HEAD) $(date -u '+%Y-%m-%d %H:%M UTC') $(nproc) CPUs"
    echo "\$ ${*/#"$python"/python}"
    "$@" 2>&1
  } | tee "$results/$name.log.part"
  tail -n 60 "$results/$name.log.part" >"$results/$name.txt"
  rm "$results/$name.log.part"
}

step test "$python" -m pytest -q -n 2 -m "not postgres and not service"
if [ -n "${MINTYARD_TEST_POSTGRES:-}" ]; then
  MINTYARD_REQUIRE_SERVICES=1 step postgres "$python" -m pytest -q -m postgres
fi
step sim "$python" -m mintyard.sim --seeds "${SEEDS:-10000}"
step mutants "$python" -m tests.mutants
step crash "$python" -m tests.crash --kills "${KILLS:-200}"
step bench "$python" -m bench
echo "results are in $results"
