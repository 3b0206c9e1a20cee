import inspect

import pytest

from fleet.config.config import parse_fleet_config
from fleet.config.ray_settings import OWN_FLAGS, RaySettings
from serving.base.errors import InvalidConfig
from serving.server.model_server import ModelServer

FILE = """
[ray]
address = "10.0.0.1:6379"
leave_seconds = 3
[ray.flags]
drain_seconds = 30
[ray.models.ctr]
base_path = "/models/ctr"
replicas = 3
memory_bytes = 2_000_000_000
requests_per_second = 500
[ray.models.ctr.flags]
drain_seconds = 60
supervise = true
[ray.models.ads]
base_path = "/models/ads"
memory_bytes = 1
"""


def settings_of(text: str) -> RaySettings:
    settings = parse_fleet_config(text).ray
    assert settings is not None
    return settings


def test_ray_table_has_models_with_flags() -> None:
    settings = settings_of(FILE)
    ads, ctr = settings.models
    assert (ads.name, ads.replicas, ctr.replicas) == ("ads", 1, 3)
    assert settings.flags_of(ctr) == {"drain_seconds": 60, "supervise": True}
    assert settings.flags_of(ads) == {"drain_seconds": 30}
    need = settings.wanted()[1].need
    assert need.room_bytes == 2 * ctr.memory_bytes + settings.process_bytes
    assert (need.replica_count, need.requests_per_second) == (3, 500)
    assert [wanted.drain_seconds for wanted in settings.wanted()] == [30, 60]


def test_changed_flags_change_the_spec() -> None:
    before = settings_of(FILE).wanted()
    after = settings_of(FILE.replace("drain_seconds = 60", "drain_seconds = 61")).wanted()
    assert [one.spec == other.spec for one, other in zip(before, after)] == [True, False]
    moved = settings_of(FILE.replace("[ray]", '[ray]\nstate_directory = "/s"', 1)).wanted()
    assert [one.spec == other.spec for one, other in zip(before, moved)] == [False, False]
    more = settings_of(FILE.replace("replicas = 3", "replicas = 4")).wanted()
    assert [one.spec == other.spec for one, other in zip(before, more)] == [True, True]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("replicas = 3", "replicas = 0", "replicas is below 1"),
        ("memory_bytes = 1\n", "", "memory_bytes is missing"),
        ("supervise = true", "port = 1", "--port"),
        ("[ray.models.ads]", '[ray.models."a b"]', "other characters"),
        ("supervise = true", "superviser = true", "did you mean --supervise"),
        ("supervise = true", "supervise = 3", "--supervise=3: must be true or false"),
        ("supervise = true", "supervise = {a = 1}", "no value of a flag"),
        ("drain_seconds = 30", 'drain_seconds = "long"', "must be a number of seconds"),
        ("leave_seconds = 3", "leaves = 3", "unknown key 'leaves'"),
        ("leave_seconds = 3", "leave_seconds = 2", "not above twice poll_seconds"),
        ("leave_seconds = 3", "leave_seconds = 0", "not above twice poll_seconds"),
        ("leave_seconds = 3", "leave_seconds = 3\ncpus = -1", "cpus -1 is negative"),
        ("leave_seconds = 3", "leave_seconds = 3\nprocess_bytes = -1", "process_bytes -1 is neg"),
        ("requests_per_second = 500", "requests_per_second = -1", "is negative"),
        ("[ray]", '[servers.a]\nadmin = "h:1"\n[ray]', "[servers] has no use beside [ray]"),
    ],
)
def test_wrong_ray_table_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message.replace("[", r"\[")):
        parse_fleet_config(FILE.replace(old, new))


# Arguments of `ModelServer` would reach it beside the flags.
@pytest.mark.parametrize("name", sorted(inspect.signature(ModelServer).parameters))
def test_argument_of_a_server_is_no_flag(name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"ray\.models\.ctr: .*--{name}"):
        parse_fleet_config(FILE.replace("supervise = true", f'{name} = "1"'))


@pytest.mark.parametrize("name", sorted(OWN_FLAGS))
def test_flag_of_the_fleet_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"the fleet itself gives --{name}"):
        parse_fleet_config(FILE.replace("supervise = true", f'{name} = "1"'))


def test_ray_without_models_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no model is configured"):
        parse_fleet_config("[ray]\n")
