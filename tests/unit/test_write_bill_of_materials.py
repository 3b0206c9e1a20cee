"""The bill of materials of a wheel, and the licences that go with it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from write_bill_of_materials import (
    PARTS,
    TENSORFLOW,
    UPLOT,
    UPLOT_SCRIPT,
    Part,
    UnknownVersion,
    bill_of_materials,
    component,
    main,
    uplot_version,
    version_of,
)

REPOSITORY = Path(__file__).parents[2]

HEADERS = {
    "jemalloc/jemalloc.h": '#define JEMALLOC_VERSION "5.3.0-0-g54eaed1d"\n',
    "llhttp/llhttp.h": "#define LLHTTP_VERSION_MAJOR 8\n#define LLHTTP_VERSION_MINOR 1\n"
    "#define LLHTTP_VERSION_PATCH 0\n",
    "nghttp2/nghttp2ver.h": '#define NGHTTP2_VERSION "1.52.0"\n',
    "openssl/opensslv.h": '# define OPENSSL_VERSION_STR "3.0.19"\n',
    "zlib.h": '#define ZLIB_VERSION "1.2.13"\n',
    "nanobind/nanobind.h": (
        "#define NB_VERSION_MAJOR 3\n#define NB_VERSION_MINOR 1\n#define NB_VERSION_PATCH 0\n"
    ),
    "tsl/robin_growth_policy.h": (
        "#define TSL_RH_VERSION_MAJOR 1\n// 1.3 is incompatible\n"
        "#define TSL_RH_VERSION_MINOR 4\n#define TSL_RH_VERSION_PATCH 0\n"
    ),
    "absl/base/config.h": "#define ABSL_LTS_RELEASE_VERSION 20250814\n",
    "Eigen/Version": (
        "#define EIGEN_MAJOR_VERSION 5\n#define EIGEN_MINOR_VERSION 0\n"
        "#define EIGEN_PATCH_VERSION 1\n"
    ),
    "google/protobuf/stubs/common.h": "#define GOOGLE_PROTOBUF_VERSION 6031001\n",
}
VERSIONS = {
    "jemalloc": "5.3.0",
    "llhttp": "8.1.0",
    "nghttp2": "1.52.0",
    "openssl": "3.0.19",
    "zlib": "1.2.13",
    "nanobind": "3.1.0",
    "robin-map": "1.4.0",
    "abseil": "20250814",
    "eigen": "5.0.1",
    "protobuf": "6.31.1",
}


@pytest.fixture
def include(tmp_path: Path) -> Path:
    """Returns an include directory with a header of each part."""
    for name, text in HEADERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_version_is_of_the_header(part: Part, include: Path):
    assert version_of(part, [include / "nowhere", include]) == VERSIONS[part.name]


def test_missing_header_is_an_error(tmp_path: Path):
    with pytest.raises(UnknownVersion, match="jemalloc"):
        version_of(PARTS[0], [tmp_path])


def test_header_without_version_is_an_error(include: Path):
    (include / PARTS[0].header).write_text("// moved\n")
    with pytest.raises(UnknownVersion, match="has no version of jemalloc"):
        version_of(PARTS[0], [include])


def test_document_follows_the_schema(include: Path, tmp_path: Path):
    output = tmp_path / "sboms" / "millpond.cdx.json"
    jemalloc = tmp_path / "libjemalloc.so.2"
    jemalloc.write_bytes(b"jemalloc")
    arguments = ["--version", "0.1.0", "--tensorflow", "2.21.0", "--jemalloc", str(jemalloc)]
    assert main([*arguments, "--include", str(include), "--", str(output)]) == 0
    text = output.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {item["name"]: item["version"] for item in json.loads(text)["components"]}
    assert components.items() >= (VERSIONS | {"tensorflow": "2.21.0"}).items()
    # Twice the same: a rebuild of a wheel changes nothing.
    main([*arguments, "--include", str(include), "--", str(output)])
    assert output.read_text() == text


def test_bill_of_the_image_names_tensorflow_cpu():
    document = bill_of_materials("0.1.0", [component(TENSORFLOW, "2.21.0")])
    install = (REPOSITORY / "scripts/docker/install.sh").read_text()
    (script,) = re.findall(r"^bill_for_cpu='(.*)'$", install, re.MULTILINE)
    text = subprocess.run(
        ["sed", script],
        input=json.dumps(document, indent=2),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    image = TENSORFLOW._replace(name="tensorflow-cpu", purl="pkg:pypi/tensorflow-cpu")
    expected = bill_of_materials("0.1.0", [component(image, "2.21.0")])
    # A revision of the wheel's bill.
    expected |= {"serialNumber": document["serialNumber"], "version": 2}
    assert json.loads(text) == expected


def test_other_contents_have_another_serial_number():
    one, other = (
        bill_of_materials("0.1.0", [component(PARTS[0], version)])["serialNumber"]
        for version in ("5.3.0", "5.3.1")
    )
    assert one != other


def test_missing_header_fails_the_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--version", "1", "--tensorflow", "2", "--jemalloc", str(tmp_path)]
    assert main([*arguments, "--include", str(tmp_path), "--", str(tmp_path / "bill")]) == 1
    assert "jemalloc" in capsys.readouterr().err
    assert not (tmp_path / "bill").exists()


def test_uplot_has_a_version():
    assert uplot_version(UPLOT_SCRIPT).startswith("1.")


@pytest.mark.parametrize("part", [*PARTS, TENSORFLOW], ids=lambda part: part.name)
def test_each_part_has_its_licence(part: Part):
    assert (REPOSITORY / "licenses" / f"{part.name}.txt").stat().st_size > 500


def test_uplot_has_its_licence():
    assert (UPLOT_SCRIPT.parent / "LICENSE").is_file(), UPLOT
