#!/usr/bin/env bash
# First stage of the image: builds the project in this folder into a separate virtual environment.
#
#   scripts/docker/build.sh DESTINATION [PACKAGE...]
#
# The packages with ops, for --op_package, are installed beside it.
set -euo pipefail
destination=${1:?usage: build.sh DESTINATION [PACKAGE...]}
shift
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scripts/install_packages.sh build
python3 -m venv "$destination"
pip() { "$destination/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
export PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
pip install --upgrade 'pip>=25.1,<27'
# Without isolation, because the module is built against the TensorFlow that it will run with.
pip install --group build
pip install --no-build-isolation . "$@"

# Not needed once the module is built: TensorFlow's headers (430 MB), libclang, the build's tools.
site_packages=$("$destination/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$site_packages/tensorflow/include" "$site_packages/clang/native"
pip uninstall --yes scikit-build-core nanobind pip
# The server's user cannot write byte code, so it is written now, except for what the server never imports.
"$destination/bin/python" -m compileall -q -j 0 -x '/(tensorflow/(python|compiler|lite|_api)|keras)/' "$site_packages"
