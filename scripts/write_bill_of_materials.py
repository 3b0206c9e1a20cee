"""Writes the software bill of materials of the native module: CycloneDX, as PEP 770 puts it into a
wheel.

Usage: write_bill_of_materials.py --version VERSION --tensorflow VERSION --jemalloc FILE
           --include DIRECTORY... -- OUTPUT

Lists each library of which a wheel carries code: linked into the module, compiled in from headers, or
copied. A version comes from the header that was compiled against. CMake runs this script, so it uses
the standard library only. The output depends on nothing but the inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_NAMESPACE = uuid.UUID("3f0d7a5e-8a53-4d0c-9a0e-6d1d4f5f4a11")


class Part(NamedTuple):
    """A library inside a wheel. Its version is all groups of `pattern` in `header`, joined by dots."""

    name: str
    license: str
    header: str
    pattern: str
    purl: str
    how: str


UPLOT_SCRIPT = (
    Path(__file__)
    .resolve()
    .parents[1]
    .joinpath("serving", "monitoring", "page", "uplot", "uPlot.iife.min.js")
)

LINKED = "linked statically, its symbols are hidden"
HEADERS = "headers are compiled in"
COPIED = "copied as a file"


def _macros(*names: str) -> str:
    return r".*?".join(rf"#\s*define\s+{name}\s+\"?([0-9][\w.]*)" for name in names)


PARTS = (
    Part(
        "jemalloc",
        "BSD-2-Clause",
        "jemalloc/jemalloc.h",
        _macros("JEMALLOC_VERSION"),
        "pkg:github/jemalloc/jemalloc",
        COPIED,
    ),
    Part(
        "llhttp",
        "MIT",
        "llhttp/llhttp.h",
        _macros("LLHTTP_VERSION_MAJOR", "LLHTTP_VERSION_MINOR", "LLHTTP_VERSION_PATCH"),
        "pkg:github/nodejs/llhttp",
        LINKED,
    ),
    Part(
        "nghttp2",
        "MIT",
        "nghttp2/nghttp2ver.h",
        _macros("NGHTTP2_VERSION"),
        "pkg:github/nghttp2/nghttp2",
        LINKED,
    ),
    Part(
        "openssl",
        "Apache-2.0",
        "openssl/opensslv.h",
        _macros("OPENSSL_VERSION_STR"),
        "pkg:github/openssl/openssl",
        LINKED,
    ),
    Part("zlib", "Zlib", "zlib.h", _macros("ZLIB_VERSION"), "pkg:github/madler/zlib", LINKED),
    Part(
        "nanobind",
        "BSD-3-Clause",
        "nanobind/nanobind.h",
        _macros("NB_VERSION_MAJOR", "NB_VERSION_MINOR", "NB_VERSION_PATCH"),
        "pkg:pypi/nanobind",
        LINKED,
    ),
    Part(
        "robin-map",
        "MIT",
        "tsl/robin_growth_policy.h",
        _macros("TSL_RH_VERSION_MAJOR", "TSL_RH_VERSION_MINOR", "TSL_RH_VERSION_PATCH"),
        "pkg:github/tessil/robin-map",
        LINKED,
    ),
    Part(
        "abseil",
        "Apache-2.0",
        "absl/base/config.h",
        _macros("ABSL_LTS_RELEASE_VERSION"),
        "pkg:github/abseil/abseil-cpp",
        HEADERS,
    ),
    Part(
        "eigen",
        "MPL-2.0",
        "Eigen/Version",
        _macros("EIGEN_MAJOR_VERSION", "EIGEN_MINOR_VERSION", "EIGEN_PATCH_VERSION"),
        "pkg:generic/eigen",
        HEADERS,
    ),
    Part(
        "protobuf",
        "BSD-3-Clause",
        "google/protobuf/stubs/common.h",
        _macros("GOOGLE_PROTOBUF_VERSION"),
        "pkg:github/protocolbuffers/protobuf",
        HEADERS,
    ),
)


# The versions of these are in no header.
TENSORFLOW = Part("tensorflow", "Apache-2.0", "", "", "pkg:pypi/tensorflow", HEADERS)
UPLOT = Part("uplot", "MIT", "", "", "pkg:npm/uplot", COPIED)


class UnknownVersion(Exception):
    """Raised if a header is missing or has no version."""


def version_of(part: Part, include_directories: Iterable[Path]) -> str:
    """The version in the first such header of `include_directories`. Raises UnknownVersion."""
    for directory in include_directories:
        header = directory / part.header
        if header.is_file():
            found = re.search(part.pattern, header.read_text(errors="replace"), re.DOTALL)
            if found is None:
                raise UnknownVersion(f"{header} has no version of {part.name}")
            return _dotted(".".join(found.groups()))
    raise UnknownVersion(f"{part.header} of {part.name} is in none of the include directories")


def _dotted(version: str) -> str:
    """Protobuf's 6031001 as 6.31.1, and any other version as it is."""
    if re.fullmatch(r"\d{7}", version) is None:
        return version
    number = int(version)
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def component(part: Part, version: str) -> dict[str, Any]:
    """The CycloneDX component of `part`. Pure."""
    purl = f"{part.purl}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": part.name,
        "version": version,
        "licenses": [{"license": {"id": part.license}}],
        "purl": purl,
        "properties": [{"name": "millpond:inclusion", "value": part.how}],
    }


def bill_of_materials(version: str, components: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The CycloneDX document of a wheel of Millpond `version`. Pure."""
    root = {
        "type": "application",
        "bom-ref": f"pkg:pypi/millpond@{version}",
        "name": "millpond",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:pypi/millpond@{version}",
    }
    references = [item["bom-ref"] for item in components]
    content = json.dumps([root, *components], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}",
        "version": 1,
        "metadata": {"component": root},
        "components": list(components),
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": references},
            *({"ref": reference} for reference in references),
        ],
    }


def uplot_version(script: Path) -> str:
    """The version in the first comment of uPlot's script. Raises UnknownVersion."""
    found = re.search(r"\(v([0-9][\w.]*)\)", script.read_text(encoding="utf-8")[:200])
    if found is None:
        raise UnknownVersion(f"{script} does not start with a version")
    return found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes the bill of materials of a wheel.")
    parser.add_argument("--version", required=True)
    parser.add_argument("--jemalloc", type=Path, required=True, help="the file that is copied")
    parser.add_argument("--tensorflow", required=True, help="the version of the package")
    parser.add_argument("--include", type=Path, nargs="+", default=[])
    parser.add_argument("output", type=Path)
    parsed = parser.parse_args(arguments)
    try:
        components = [component(part, version_of(part, parsed.include)) for part in PARTS]
        components.append(component(TENSORFLOW, parsed.tensorflow))
        components.append(component(UPLOT, uplot_version(UPLOT_SCRIPT)))
    except UnknownVersion as error:
        print(f"write_bill_of_materials.py: {error}", file=sys.stderr)
        return 1
    digest = hashlib.sha256(parsed.jemalloc.read_bytes()).hexdigest()
    components[0]["hashes"] = [{"alg": "SHA-256", "content": digest}]
    document = bill_of_materials(parsed.version, components)
    parsed.output.parent.mkdir(parents=True, exist_ok=True)
    parsed.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
