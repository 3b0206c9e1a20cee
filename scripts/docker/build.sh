#!/usr/bin/env bash
# First stage of the image: builds the wheel of this folder.
#
#   scripts/docker/build.sh DESTINATION
set -euo pipefail
destination=${1:?usage: build.sh DESTINATION}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scripts/install_packages.sh build
python3 -m venv /opt/build
export PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
/opt/build/bin/pip install --quiet --upgrade 'pip>=25.1,<27'
/opt/build/bin/pip install --quiet --group build --group wheel
scripts/build_wheel.sh /opt/build/bin/python build "$destination" manylinux_2_34_x86_64
