#!/usr/bin/env bash
# Second stage of the image: installs the wheel for this Python, of those beside this script, into DESTINATION.
#
#   install.sh DESTINATION EXTRAS [PACKAGE...]
#
# EXTRAS are the wheel's, like "s3,otel". The packages with ops, for --op_package, are installed beside it.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: install.sh DESTINATION EXTRAS [PACKAGE...]" >&2; exit 2; }
destination=$1 extras=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# binutils has strip.
apt-get install -qq -y --no-install-recommends python3-venv binutils >/dev/null

tag=$(python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
wheels=(wheels/millpond-*-"$tag"-*.whl)
if [ ${#wheels[@]} -ne 1 ] || [ ! -f "${wheels[0]}" ]; then
  echo "install.sh: expected one wheel of Millpond for $tag, found: $(ls wheels)" >&2
  exit 1
fi
python3 -m venv "$destination"
export PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"$destination/bin/pip" install --quiet "millpond${extras:+[$extras]} @ file://$PWD/${wheels[0]}" "$@"

# tensorflow-cpu has the same libraries without code for GPUs. It takes tensorflow's place afterwards, because a requirement
# cannot name one of two packages, and tensorflow-serving-api and packages with ops require tensorflow.
tensorflow=$("$destination/bin/python" -c 'from importlib.metadata import version; print(version("tensorflow"))')
"$destination/bin/pip" uninstall --quiet --yes tensorflow
"$destination/bin/pip" install --quiet "tensorflow-cpu==$tensorflow"

# The server needs TensorFlow's libraries and messages. TensorFlow's own Python (`import tensorflow`), its headers and
# the packages that only they use have 800 MB.
site_packages=$("$destination/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The wheel's bill of materials names tensorflow. A revision of a bill keeps its serial number.
bill_for_cpu='s#pkg:pypi/tensorflow@#pkg:pypi/tensorflow-cpu@#; s/"name": "tensorflow"/"name": "tensorflow-cpu"/; s/^  "version": 1,/  "version": 2,/'
sed -i "$bill_for_cpu" "$site_packages"/millpond-*.dist-info/sboms/millpond.cdx.json

(cd "$site_packages/tensorflow" && rm -rf include python compiler/mlir compiler/tf2tensorrt lite _api xla_aot_runtime_src tools)
"$destination/bin/pip" uninstall --quiet --yes keras h5py libclang
"$destination/bin/python" -m pip uninstall --quiet --yes setuptools pip
# Their symbol tables, for debuggers, have 250 MB; the dynamic symbols stay.
strip --strip-all "$site_packages"/tensorflow/libtensorflow_*.so.*
# The server's user cannot write byte code.
"$destination/bin/python" -m compileall -q -j 0 "$site_packages"
