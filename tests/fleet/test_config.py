import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleet.config.config import FleetServer, parse_fleet_config, read_fleet_config
from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.rollout.decision import decide
from fleet.rollout.reports import ServerReport, Sighting
from fleet.rollout.state import FleetState
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.base.clock import Now
from serving.base.errors import InvalidConfig
from tests.fleet.worlds.fleet import MODEL, serving

SMALL = """
[coordinator]
state_directory = "/var/lib/fleet"
[servers.b]
admin = "10.0.0.2:8599"
[servers.a]
admin = "unix:/run/a.sock"
grpc = "10.0.0.1:8500"
"""


def test_small_file_has_defaults() -> None:
    config = parse_fleet_config(SMALL)
    assert config.servers == (
        FleetServer(name="a", admin="unix:/run/a.sock", grpc="10.0.0.1:8500"),
        FleetServer(name="b", admin="10.0.0.2:8599"),
    )
    assert config.waves == WaveSettings()
    assert config.haproxy is None


def test_byte_order_mark_changes_no_config(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(SMALL, encoding="utf-8-sig")
    assert read_fleet_config(path) == parse_fleet_config(SMALL)


def test_waves_have_sizes_and_a_judgement() -> None:
    text = '[waves]\nsizes = ["2", 3, "12.5%"]\nrequest_count = 500\njudged_seconds = 5\n'
    waves = parse_fleet_config(SMALL + text).waves
    assert waves.sizes == (WaveSize(2), WaveSize(3), WaveSize(share=0.125))
    assert (waves.judgement.request_count, waves.judged_seconds) == (500, 5)


def test_haproxy_has_files_and_settings() -> None:
    text = '[haproxy]\nfile = "/etc/haproxy.cfg"\nbind = "*:80"\n'
    with pytest.raises(InvalidConfig, match="bind"):
        parse_fleet_config(SMALL + text)
    haproxy = parse_fleet_config(SMALL + text.replace("*:80", "0.0.0.0:80")).haproxy
    assert haproxy is not None
    assert (haproxy.file, haproxy.settings.bind) == ("/etc/haproxy.cfg", "0.0.0.0:80")


RACK = SMALL + '[servers."rack 1"]\nadmin = "c:1"\ngrpc = "c:2"\n'


def with_coordinator(line: str) -> str:
    return SMALL.replace("[coordinator]", f"[coordinator]\n{line}")


def test_name_that_haproxy_cannot_have_is_fine_without() -> None:
    assert [server.name for server in parse_fleet_config(RACK).servers] == ["a", "b", "rack 1"]


PODS = "[kubernetes]\nselector = 'app=millpond'\n"


def test_kubernetes_takes_the_place_of_servers() -> None:
    config = parse_fleet_config(PODS + "[tls]\nca = 'ca.pem'\nserver_name = 'millpond'\n")
    assert config.kubernetes == KubernetesSettings(selector="app=millpond")
    assert (config.servers, config.coordinator.state_directory) == ((), "")
    assert config.tls.server_name == "millpond"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + PODS, "servers"),
        ("[coordinator]\nstate_directory = 'x'\n" + PODS, "state_directory"),
        ("[kubernetes]\n", "selector is missing"),
        ("[kubernetes]\nselector = ' '\n", "selects every pod"),
        (PODS + "lease_seconds = 5\n", "lease_seconds 5"),
        (PODS + "admin_port = 8599\n", "admin_port is 8599"),
        (PODS + "admin_port = 'Admin'\n", "'Admin'"),
        (PODS + "name = 'Fleet'\n", "'Fleet'"),
        (PODS + "name = ''\n", "name is empty"),
        (PODS + "pods = 3\n", "unknown key 'pods'"),
        ("[", "not TOML"),
        ("[coordinator]\nstate_directory = 'x'\n", "no server"),
        ("[coordinator]\n[servers.a]\nadmin = 'h:1'\n", "state_directory is missing"),
        (SMALL + "[other]\n", "unknown key 'other'"),
        (SMALL + "[servers.c]\n", "servers.c: admin is missing"),
        (SMALL + "[waves]\nsizes = ['10 %']\n", "10 %"),
        (SMALL + "[waves]\nsizes = ['1.5']\n", "1.5"),
        (SMALL + "[waves]\nload_count_max = 'x'\n", "load_count_max"),
        (SMALL + "[waves]\nload_count_max = true\n", "load_count_max"),
        (SMALL + "[waves]\nrequest_count = 1.5\n", "request_count"),
        (SMALL + "[waves]\nweight = 0.5\nwaves = 3\n", "unknown key"),
        (SMALL + "[waves]\njudged_seconds = 0\n", "judged_seconds"),
        ("servers = 3\n", "not a table"),
        (with_coordinator("poll_seconds = 0"), r"poll_seconds 0 .* give 0\.01"),
        (with_coordinator("poll_seconds = nan"), "poll_seconds is nan"),
        (with_coordinator("poll_threads = 0"), "poll_threads 0 .* give 1"),
        (with_coordinator("poll_threads = 100000"), "poll_threads"),
        (with_coordinator("poll_seconds = 30"), "lost_seconds 30 is not above poll_seconds"),
        (SMALL + "[waves]\nlost_seconds = inf\n", "lost_seconds is inf"),
        (SMALL + "[waves]\nlost_seconds = 1e10\n", "lost_seconds"),
        (SMALL + "[waves]\nlost_seconds = 1" + 400 * "0" + "\n", "lost_seconds"),
        (SMALL + "[waves]\nlatency_ratio_max = nan\n", "latency_ratio_max is nan"),
        (SMALL + "[waves]\nerror_ratio_max = -1\n", "error_ratio_max -1 .* give more than 0"),
        (SMALL + "[waves]\nlatency_ratio_max = 0\n", "latency_ratio_max 0 .* give more than 0"),
        (SMALL + "[waves]\nsetback_share_max = nan\n", "setback_share_max"),
        (SMALL + "[waves]\ncontrol_count_max = 0\n", "control_count_max 0 .* give 1"),
        (SMALL + "[waves]\nsizes = 3\n", "sizes is 3; give a list"),
        (SMALL + "[waves]\nsizes = ['.%']\n", "size"),
        (SMALL + "[waves]\nsizes = ['2', '1']\n", "size '1' is not above the '2'"),
        (SMALL + "[waves]\nsizes = ['10%', '10%']\n", "size '10%' is not above"),
        (with_coordinator("listen = '127.0.0.1:87000'"), "listen '127.0.0.1:87000' is not HOST"),
        (with_coordinator("listen = '8700'"), "listen '8700' is not HOST:PORT"),
        (with_coordinator("operators = '8700'"), "operators '8700' is not HOST:PORT"),
        (SMALL + "[waves]\nsizes = ['" + 5000 * "9" + "']\n", "size"),
        (SMALL + "[waves]\nwaves = 3\n", "unknown key 'waves'"),
        (SMALL + "[waves]\njudgement = 3\n", "unknown key 'judgement'"),
        (SMALL + "[servers.c]\nadmin = '10.0.0.3'\n", "servers.c: admin .* HOST:PORT or unix"),
        (SMALL + "[servers.c]\nadmin = 'c:1'\ngrpc = '10.0.0.1'\n", "servers.c: grpc .*HOST:PORT"),
        (SMALL + "[servers.c]\nadmin = 'c:1'\nhttp = 'c:70000'\n", "servers.c: http"),
        (SMALL + "[servers.c]\nadmin = 'c:1'\nname = 'd'\n", "unknown key 'name'"),
        (SMALL + "[servers.'']\nadmin = 'c:1'\n", "empty name"),
        (RACK + "[haproxy]\nfile = '/h.cfg'\n", "server name 'rack 1'"),
        (RACK + "[haproxy]\nfile = '/h'\nbinds = {m = 'h:1'}\n", "server name 'rack 1'"),
        (SMALL + "[servers.c]\nadmin = '10.0.0.2:8599'\n", "servers.c: admin .* 'b' too"),
        (SMALL + "[servers.c]\nadmin = 'c:1'\ngrpc = '10.0.0.1:8500'\n", "grpc .* 'a' too"),
        (SMALL + "[haproxy]\nfile = '/h'\nbind = 'h:2'\nbinds = {m = 'h:1'}\n", "remove one"),
        (SMALL + "[waves]\nsizes = ['200%']\n", "size '200%' .* less than 100%"),
        (SMALL + "[tls]\nca = 3\n", "ca is 3"),
        ("[ray]\nflags = 3\n[ray.models.m]\nbase_path = '/m'\nmemory_bytes = 1\n", "flags is 3"),
        (SMALL + "[waves]\nload_count_max = " + 5000 * "9", "not TOML"),
        ("a = " + 100_000 * "[", "not TOML"),
    ],
)
def test_wrong_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        parse_fleet_config(text)


def test_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[")
    with pytest.raises(InvalidConfig, match=r"fleet\.toml"):
        read_fleet_config(path)
    path.unlink()
    with pytest.raises(InvalidConfig, match=r"fleet\.toml cannot be read: No such file"):
        read_fleet_config(path)


KEYS = {
    "coordinator": ("state_directory", "listen", "poll_seconds", "poll_threads", "registry_file"),
    "waves": (
        *("sizes", "waves", "judgement", "load_count_max", "request_count", "judged_seconds"),
        *("latency_ratio_max", "error_ratio_max", "control_count_max", "lost_seconds"),
        *("load_seconds_max", "setback_share_max", "weight"),
    ),
    "tls": ("ca", "cert", "key", "server_name"),
    "servers": ("a", "rack 1", ""),
    "haproxy": ("file", "pid_file", "bind", "stats_socket", "check_seconds", "settings"),
    "kubernetes": ("selector", "name", "admin_port", "lease_seconds"),
    "ray": ("models", "address", "name", "process_bytes", "cpus", "flags"),
}
WORDS = st.sampled_from(["", "a", "1", "10%", "99.9%", "c:1", "unix:/a", "rack 1", "*"])
VALUES = st.recursive(
    WORDS
    | st.text(max_size=4)
    | st.booleans()
    | st.integers()
    | st.integers(min_value=0, max_value=40)
    | st.floats()
    | st.sampled_from([math.inf, math.nan, 10**400, 1e300]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["admin", "grpc", "base_path", "m"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Returns a file that is right but for random values of a few keys."""
    tables: dict[str, Any] = {
        "coordinator": {"state_directory": "/var/lib/fleet"},
        "servers": {"a": {"admin": "a:1", "grpc": "a:2"}},
    }
    for name in draw(st.lists(st.sampled_from([*KEYS]), min_size=1, max_size=2)):
        key = draw(st.sampled_from(KEYS[name]))
        tables[name] = {**tables.get(name, {}), key: draw(VALUES)}
    return tables


# Numbers that are right for most keys that have one, and others.
WHOLE = st.integers(min_value=0, max_value=40)
REAL = WHOLE | st.floats(min_value=0.05, max_value=0.9) | st.floats(allow_nan=False)
NUMBERS = {
    "sizes": st.lists(st.sampled_from(["1", "10%", 3, "99.9%"]), max_size=3),
    **dict.fromkeys(("load_count_max", "request_count", "control_count_max"), WHOLE),
    **dict.fromkeys(("latency_ratio_max", "error_ratio_max", "lost_seconds"), REAL),
    **dict.fromkeys(("judged_seconds", "load_seconds_max", "setback_share_max"), REAL),
}
WAVES = st.fixed_dictionaries({}, optional=NUMBERS)


def toml_of(value: object) -> str:
    """Returns a value as TOML writes it, with tables inline."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {toml_of(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    return repr(value)


def text_of(tables: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {toml_of(table)}" for name, table in tables.items())


@given(files())
@example({"waves": {"sizes": 3}})
def test_any_file_is_a_configuration_or_refused(tables: dict[str, Any]) -> None:
    with suppress(InvalidConfig):
        parse_fleet_config(text_of(tables))


@given(WAVES)
@example({"lost_seconds": math.inf})
@example({"lost_seconds": 1e9, "load_seconds_max": 1e9, "judged_seconds": 1e9})
def test_waves_that_are_accepted_can_be_decided_by(waves: dict[str, Any]) -> None:
    with suppress(InvalidConfig):
        settings = parse_fleet_config(text_of({"waves": waves}) + SMALL).waves
        report = ServerReport(models={MODEL: serving(1, found=frozenset({1, 2}))})
        sightings = {"a": Sighting(report, 0), "b": Sighting(None, 0)}
        state = decide(FleetState(), {}, sightings, settings, Now(10**12)).state
        sightings["b"] = Sighting(report, 10**12)
        decide(state, {}, sightings, settings, Now(10**12 + 1))
