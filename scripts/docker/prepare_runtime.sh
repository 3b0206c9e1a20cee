#!/usr/bin/env bash
# Last stage of the image: installs the libraries of the module and adds the server's user.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

./install_packages.sh runtime
apt-get clean
rm -rf /var/lib/apt/lists/*

useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin millpond
mkdir -p /models
# The copies of models from object storage; the server's user writes them.
install -d -o millpond -g millpond /var/cache/millpond
