#!/usr/bin/env bash
# Runs a command on one core (CORE, 1 by default) that it shares with a loop that never rests. Tests that depend
# on the machine's speed, or on two things happening at the same time, fail there.
#
#   scripts/beside_busy_loop.sh .venv/bin/pytest tests/integration/test_drain.py
set -eu
core=${CORE:-1}

# It ends with this script, and at the latest after five hours.
taskset -c "$core" timeout 5h bash -c 'while :; do :; done' &
loop=$!
trap 'kill "$loop"' EXIT
taskset -c "$core" "$@"
