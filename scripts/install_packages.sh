#!/usr/bin/env bash
# Installs the Debian packages of the groups on the command line, if any package is missing.
#
#   scripts/install_packages.sh build grpc run test lint clang bench runtime
#
# Does not use the network if all packages are installed, so every make target can run it first.
set -euo pipefail

packages_of() {
  case "$1" in
    build) echo "python3-venv python3-dev g++ cmake ninja-build ccache libjemalloc-dev libnghttp2-dev
                 libssl-dev node-llhttp zlib1g-dev protobuf-compiler" ;;
    # The load generator and the clients of the native tests link gRPC; the server does not.
    grpc) echo "libgrpc++-dev" ;;
    # jemalloc, which the server preloads; the build copies it beside the module.
    run) echo "libjemalloc2" ;;
    # prometheus scrapes the server under test and brings promtool.
    # haproxy balances between servers of a fleet.
    # chromium opens the live page, openssl makes certificates, curl and h2load (nghttp2-client) call the REST API.
    # zsh and fish read the completion scripts. The JDK runs a client that is one source file.
    test) echo "libgtest-dev libgmock-dev prometheus chromium openssl curl nghttp2-client zsh fish haproxy
                default-jdk-headless golang-go" ;;
    lint) echo "clang-format-14 clang-tidy-14" ;;
    # The compiler of the sanitizer builds; its sanitizers and libFuzzer are a package of their own.
    clang) echo "clang-14 libclang-rt-14-dev" ;;
    bench) echo "nghttp2-client" ;;
    # The built module contains jemalloc, llhttp, nghttp2, OpenSSL and zlib.
    runtime) echo "python3 libstdc++6" ;;
    *) echo "install_packages.sh: unknown group '$1'; one of: build grpc run test lint clang bench runtime" >&2; return 1 ;;
  esac
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
for group in "$@"; do
  for package in $(packages_of "$group"); do
    is_installed "$package" || missing+=("$package")
  done
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "This is not a Debian machine: install the equivalents of these packages, then try again: ${missing[*]}" >&2
  exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "Packages are missing, and only root can install them. Run once, as root:" >&2
  echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi

# Debian starts the daemons that it installs unless this file forbids it; the tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
echo "Installing Debian packages (about a minute): ${missing[*]}"
# A broken third-party source is not an error: the next command fails if a package is not available.
apt-get update -qq || echo "apt-get update failed; continuing with the existing package lists" >&2
apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" >/dev/null

# The daemon must not start at the next boot either.
case " ${missing[*]} " in
  *" prometheus "*) systemctl disable --quiet prometheus.service 2>/dev/null || true ;;
esac
