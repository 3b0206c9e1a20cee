from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.fleet.config import FleetServer, parse_fleet_config, read_fleet_config
from serving.fleet.kubernetes.settings import KubernetesSettings
from serving.fleet.wave_settings import Wave, WaveSettings

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


def test_waves_have_sizes_and_a_judgement() -> None:
    text = '[waves]\nsizes = ["2", 3, "12.5%"]\nrequest_count = 500\njudged_seconds = 5\n'
    waves = parse_fleet_config(SMALL + text).waves
    assert waves.waves == (Wave(2), Wave(3), Wave(share=0.125))
    assert (waves.judgement.request_count, waves.judged_seconds) == (500, 5)


def test_haproxy_has_files_and_settings() -> None:
    text = '[haproxy]\nfile = "/etc/haproxy.cfg"\nbind = "*:80"\n'
    with pytest.raises(InvalidConfig, match="bind"):
        parse_fleet_config(SMALL + text)
    haproxy = parse_fleet_config(SMALL + text.replace("*:80", "0.0.0.0:80")).haproxy
    assert haproxy is not None
    assert (haproxy.file, haproxy.settings.bind) == ("/etc/haproxy.cfg", "0.0.0.0:80")


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
