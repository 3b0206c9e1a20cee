#!/usr/bin/env bash
# Runs commands at the same time, for example two make targets that each keep one core busy.
# Prints the output of each command as one piece when it ends. Fails if one of them fails.
#
#   scripts/run_together.sh 'make lint' 'make native'
set -u

outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT

run() {
  local started=$SECONDS status=0
  bash -c "$1" >"$2" 2>&1 </dev/null || status=$?
  { echo "--- $1: exit status $status after $((SECONDS - started)) s"; cat "$2"; } >"$2.whole"
  cat "$2.whole"
  return "$status"
}

processes=()
for command in "$@"; do
  run "$command" "$outputs/${#processes[@]}" &
  processes+=($!)
done
failed=0
for process in "${processes[@]}"; do
  wait "$process" || failed=1
done
exit "$failed"
