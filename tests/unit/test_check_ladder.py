"""Tests of the ladder check that `make lint` runs."""

from __future__ import annotations

from pathlib import Path

import check_ladder
import pytest


def write(native: Path, name: str, text: str) -> None:
    path = native / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "include"),
    [
        ("base/status.h", '"metrics/latency_histogram.h"'),
        ("base/status.h", '"native/rpc/codec.h"'),
        ("memory/arena.cc", '"tf/arena_device.h"'),
        ("inference/predict.cc", '"native/tf/saved_model.h"'),
        ("tf/saved_model.cc", '"native/inference/predict.h"'),
        ("rpc/server.cc", '"native/rest/rest_service.h"'),
        ("memory/arena.cc", '"../base/status.h"'),
        ("servable/handle.h", "<jemalloc/jemalloc.h>"),
        ("memory/arena.cc", '"tensorflow/core/framework/allocator.h"'),
        ("rpc/codec.cc", '"absl/strings/str_cat.h"'),
        ("tf/session.cc", "<nghttp2/nghttp2.h>"),
        ("rest/http.cc", "<openssl/ssl.h>"),
        ("servable/thing.cc", "<sys/epoll.h>"),
        ("rpc/server.cc", "<grpcpp/grpcpp.h>"),
        ("rpc/server.cc", "<nanobind/nanobind.h>"),
        ("strategy/thing.cc", "<vector>"),
    ],
)
def test_check_ladder_bad_include_fails(tmp_path: Path, name: str, include: str) -> None:
    write(tmp_path, name, f"// A comment.\n#  include {include}\n")

    assert len(check_ladder.check_ladder(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "include"),
    [
        ("base/status.cc", '"base/status.h"'),
        ("python/module.cpp", '"base/status.h"'),
        ("memory/arena.cc", "<jemalloc/jemalloc.h>"),
        ("tf/session.cc", '"tensorflow/core/public/session.h"'),
        ("tf/saved_model_servable.h", '"native/servable/servable.h"'),
        ("rpc/server.cc", "<nghttp2/nghttp2.h>"),
        ("rpc/transport.h", "<openssl/ssl.h>"),
        ("rpc/message_encoding.cc", "<zlib.h>"),
        ("python/module.cpp", "<nanobind/nanobind.h>"),
        ("bench/callable.cc", '"tensorflow/core/public/session.h"'),
        ("load_generator/main.cc", "<grpcpp/grpcpp.h>"),
    ],
)
def test_check_ladder_good_include_passes(tmp_path: Path, name: str, include: str) -> None:
    write(tmp_path, name, f"#include {include}\n")

    assert check_ladder.check_ladder(tmp_path) == []


def test_check_ladder_violation_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "base/clock.h", "#pragma once\n\n#include <grpcpp/grpcpp.h>\n")

    (violation,) = check_ladder.check_ladder(tmp_path)

    assert str(violation).startswith(f"{tmp_path / 'base/clock.h'}:3: base includes ")


def test_check_cycles_finds_a_circle_of_units(tmp_path: Path) -> None:
    write(tmp_path, "rpc/call.h", "// A header.\n")
    write(tmp_path, "rpc/call.cc", '#include "native/rpc/call.h"\n#include "native/rpc/queue.h"\n')
    write(tmp_path, "rpc/queue.h", '#include "native/rpc/threads.h"\n')
    write(tmp_path, "rpc/threads.h", '#include "rpc/call.h"\n')

    (violation,) = check_ladder.check_cycles(tmp_path)

    assert violation.path == tmp_path / "rpc/threads.h"
    assert "rpc/call → rpc/queue → rpc/threads → rpc/call" in str(violation)


def test_check_cycles_ways_that_meet_pass(tmp_path: Path) -> None:
    write(tmp_path, "rpc/call.h", "// A header.\n")
    write(tmp_path, "rpc/queue.h", '#include "native/rpc/call.h"\n')
    write(tmp_path, "rpc/threads.h", '#include "native/rpc/call.h"\n')
    both = '#include "native/rpc/queue.h"\n#include "native/rpc/threads.h"\n#include <vector>\n'
    write(tmp_path, "rpc/server.cc", both)

    assert check_ladder.check_cycles(tmp_path) == []


def test_check_ladder_missing_directory_fails(tmp_path: Path) -> None:
    assert check_ladder.main([str(tmp_path / "absent")]) == 2


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("core/servable.py", "from serving.manager.stream import Stream"),
        ("base/errors.py", "import serving.core.servable"),
        ("manager/stream.py", "from serving import server"),
        ("manager/stream.py", "from serving.strategy import thing"),
        ("strategy/thing.py", "import os"),
        ("thing.py", "import os"),
    ],
)
def test_check_rooms_bad_import_fails(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "native").mkdir()
    write(tmp_path / "serving", name, f"def late() -> None:\n    {line}\n")

    assert len(check_ladder.check_rooms(tmp_path / "serving")) == 1
    assert check_ladder.main([str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("manager/stream.py", "from serving.core.servable import ServableId"),
        ("manager/stream.py", "from serving.manager import canary"),
        ("manager/stream.py", "import tensorflow.serving.manager"),
        ("commands/serve.py", "import serving.server.server"),
        ("__init__.py", "from serving.server.model_server import ModelServer"),
    ],
)
def test_check_rooms_good_import_passes(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "native").mkdir()
    write(tmp_path / "serving", name, f"{line}\n")

    assert check_ladder.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("name", "line", "violation_count"),
    [
        ("warmup/replay.py", "from serving.client import Client", 1),
        ("serving/core/servable.py", "from warmup import records", 1),
        ("warmup/replay.py", "from serving.base.errors import DataLoss", 0),
        ("warmup/replay.py", "from warmup.records import read_records", 0),
        ("serving/gates/gates.py", "from warmup.replay import Ask", 0),
    ],
)
def test_check_rooms_warm_up_stands_below_the_gates(
    tmp_path: Path, name: str, line: str, violation_count: int
) -> None:
    write(tmp_path, name, f"{line}\n")

    assert len(check_ladder.check_rooms(tmp_path / "serving")) == violation_count


def test_check_import_circles_sees_a_hidden_one(tmp_path: Path) -> None:
    write(tmp_path, "serving/__init__.py", "")
    write(tmp_path, "serving/core/first.py", "import os\nimport serving.core.second\n")
    write(tmp_path, "serving/core/second.py", "from serving.core import third\n")
    write(
        tmp_path,
        "serving/core/third.py",
        "def late() -> None:\n    from serving.core.first import x\n",
    )

    (violation,) = check_ladder.check_import_circles(tmp_path)

    assert (violation.path, violation.line) == (tmp_path / "serving/core/third.py", 2)
    circle = "serving.core.first → serving.core.second → serving.core.third → serving.core.first"
    assert circle in str(violation)
    assert check_ladder.main([str(tmp_path)]) == 2
    (tmp_path / "native").mkdir()
    assert check_ladder.main([str(tmp_path)]) == 1


def test_check_import_circles_ways_that_meet_pass(tmp_path: Path) -> None:
    write(tmp_path, "serving/core/first.py", "from serving.core import second, third\n")
    write(tmp_path, "serving/core/second.py", "from serving.core.third import x\n")
    write(tmp_path, "serving/core/third.py", "import os\n")

    assert check_ladder.check_import_circles(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "line", "violation_count"),
    [
        ("plan/arrivals.py", "from loadtest.measure.latency import figures", 1),
        ("drive/generator.py", "from loadtest import report", 1),
        ("extra/thing.py", "import os", 1),
        ("measure/scenario.py", "from loadtest.drive.generator import Generator", 0),
        ("plan/presets.py", "from serving.server.launcher import find_jemalloc", 0),
        ("__main__.py", "from loadtest.commands.demo import DEMO", 0),
    ],
)
def test_check_rooms_holds_the_load_tests_order(
    tmp_path: Path, name: str, line: str, violation_count: int
) -> None:
    write(tmp_path / "loadtest", name, f"{line}\n")

    assert len(check_ladder.check_rooms(tmp_path / "loadtest")) == violation_count


@pytest.mark.parametrize(
    ("name", "line", "violation_count"),
    [
        ("serving/server/server.py", "from fleet.commands.command import run", 1),
        ("warmup/replay.py", "import loadtest", 1),
        ("fleet/service.py", "from serving.manager.canary import judge", 0),
        ("fleet/service.py", "from serving.loading.load import CheckedLoad", 1),
        ("fleet/service.py", "from serving import ModelServer", 1),
        ("millpond/fleet.py", "from fleet.ray import deploy", 0),
    ],
)
def test_check_packages_holds_the_packages_order(
    tmp_path: Path, name: str, line: str, violation_count: int
) -> None:
    write(tmp_path, name, f"def late() -> None:\n    {line}\n")

    assert len(check_ladder.check_packages(tmp_path)) == violation_count


@pytest.mark.parametrize(
    ("line", "violation_count"),
    [
        ("from tests.unit.test_manager import World", 1),
        ("from tests.unit import test_manager", 1),
        ("import tests.integration.test_rest", 1),
        ("from tests.unit.worlds.manager import World", 0),
        ("from tensorflow.python.platform import test_util", 0),
    ],
)
def test_check_tests_finds_imports_of_test_files(
    tmp_path: Path, line: str, violation_count: int
) -> None:
    for folder in ("native", "serving"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "tests", "unit/test_a.py", f"def late() -> None:\n    {line}\n")

    assert len(check_ladder.check_tests(tmp_path / "tests")) == violation_count
    assert check_ladder.main([str(tmp_path)]) == violation_count


def test_check_ladder_holds_for_this_repository() -> None:
    assert check_ladder.main([]) == 0
