#!/usr/bin/env bash
# Second stage of the image: the libraries that the module needs, and the user that the server runs as.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

./install_packages.sh runtime
apt-get clean
rm -rf /var/lib/apt/lists/*

useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin millpond
mkdir -p /models
