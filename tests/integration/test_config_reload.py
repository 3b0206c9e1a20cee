"""Changes of models, policies and labels in a running server: by RPC, by file, and by `millpond
config`.
"""

import itertools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import InvalidArgument, NotFound
from serving.base.protos import get_model_status_pb2, model_management_pb2
from serving.client import Client
from serving.client.stubs import ModelServiceStub
from serving.config.model_config_file import encode_model_config
from serving.core.operator_api import RELOAD_CONFIG
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import (
    SERVING,
    TIMEOUT_SECONDS,
    Caller,
    array,
    caller_to,
    is_right,
    predict_request,
    refusal,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import millpond
from tests.integration.steady_clients import scale_clients

X = np.array([1, 2, 3], np.float32)


class Models:
    """A config file, and one base path for each model that the file may name.

    Of all tests on a server, each has names of its own: `self.a` has version 1 from the start.
    """

    def __init__(self, directory: Path, scale_model: ScaleModel, number: int = 0) -> None:
        self.directory = directory
        self.file = directory / f"models-{number}.config"
        self.a, self.b, self.empty = f"a{number}", f"b{number}", f"empty{number}"
        self._scale_model = scale_model
        self.drop(self.a, 1)

    def base_path(self, name: str) -> Path:
        return self.directory / name

    def drop(self, name: str, *versions: int) -> None:
        self.base_path(name).mkdir(exist_ok=True)
        for version in versions:
            self._scale_model.write(self.base_path(name), version)

    def configure(self, fields: Mapping[str, str], base_path: Path | None = None) -> bytes:
        """Writes the file by an atomic replacement and returns it as clients send it.

        `fields` are the further fields of each model. `base_path` replaces those of all models.
        """
        configs = (
            f'config {{ name: "{name}" base_path: "{base_path or self.base_path(name)}" {more} }}'
            for name, more in fields.items()
        )
        beside = self.file.with_suffix(".partial")
        beside.write_text(f"model_config_list {{ {' '.join(configs)} }}")
        beside.rename(self.file)
        return encode_model_config(self.file)


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelServer:
    first = Models(tmp_path_factory.mktemp("first"), scale_model)
    first.configure({first.a: ""})
    return start_module_server(model_config_file=first.file)


@pytest.fixture
def models(server: ModelServer, tmp_path: Path, scale_model: ScaleModel) -> Models:
    """Models of which the server has `a` alone."""
    models = Models(tmp_path, scale_model, next(_numbers))
    config = models.configure({models.a: ""})
    with Client(server.admin_target) as client:
        client.reload_config(config)
    return models


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(server.admin_target) as client:
        yield client


def request_for(name: str, *, version: int | None = None, label: str | None = None) -> Any:
    request = predict_request(name, {"x": X}, version=version)
    if label is not None:
        request.model_spec.version_label = label
    return request


def answering(caller: Caller, name: str, label: str | None = None) -> int:
    """Returns the version that answers, after a check of the answer."""
    response = caller.predict(request_for(name, label=label))
    version: int = response.model_spec.version.value
    assert is_right(array(response.outputs["y"]), ScaleModel.answer(version, X))
    return version


def labelled(label: str, version: int) -> str:
    return f'version_labels {{ key: "{label}" value: {version} }}'


# --- By RPC ---------------------------------------------------------------------------------------


def test_reload_adds_model_and_answers_once_it_serves(
    models: Models, client: Client, caller: Caller
) -> None:
    models.drop(models.b, 7)
    client.reload_config(models.configure({models.a: "", models.b: ""}))
    assert (answering(caller, models.b), answering(caller, models.a)) == (7, 1)
    # Health follows the states on its own thread.
    wait_until(lambda: caller.health(models.b) == SERVING, "health of the new model")


def test_reload_removes_a_model_and_forgets_its_health(
    models: Models, client: Client, caller: Caller
) -> None:
    models.drop(models.b, 7)
    client.reload_config(models.configure({models.a: "", models.b: ""}))
    client.reload_config(models.configure({models.b: ""}))
    wait_for_states(client, models.a, {1: END})
    code, _ = refusal(lambda: caller.predict(request_for(models.a)))
    assert code == grpc.StatusCode.NOT_FOUND
    assert refusal(lambda: caller.health(models.a))[0] == grpc.StatusCode.NOT_FOUND
    assert answering(caller, models.b) == 7
    wait_until(lambda: caller.health("") == SERVING, "health of the server")


def test_reload_moves_base_path_and_policy_as_one(
    models: Models, client: Client, caller: Caller
) -> None:
    models.drop(models.a, 2, 3)
    all_versions = "model_version_policy { all {} }"
    former = models.directory / "former"
    former.mkdir()
    for version in (1, 2, 5):
        # Other files under the numbers of the base path that follows.
        models.drop(models.b, version + 10)
        (models.base_path(models.b) / str(version + 10)).rename(former / str(version))
    for _ in range(5):
        client.reload_config(models.configure({models.a: ""}, base_path=former))
        wait_for_states(client, models.a, {5: AVAILABLE})
        client.reload_config(models.configure({models.a: all_versions}))
        wait_for_states(client, models.a, {1: AVAILABLE, 2: AVAILABLE, 3: AVAILABLE})
        for version in (1, 2, 3):
            response = caller.predict(request_for(models.a, version=version))
            assert is_right(array(response.outputs["y"]), ScaleModel.answer(version, X))


def test_same_version_in_new_base_path_is_in_status(
    server: ModelServer, models: Models, client: Client, caller: Caller
) -> None:
    other = models.directory / "other"
    shutil.copytree(models.base_path(models.a), other)
    remark = f"{models.a}: version 1 serves the files that it has loaded, and {other}/1 has others"

    def status() -> str:
        return millpond("status", models.a, f"--target={server.admin_target}").stdout

    client.reload_config(models.configure({models.a: ""}, base_path=other))
    wait_until(lambda: remark in status(), remark)
    assert answering(caller, models.a) == 1
    client.reload_config(models.configure({models.a: ""}))
    wait_until(lambda: remark not in status(), "no remark")


def test_withdrawn_version_with_label_is_no_default(
    models: Models, client: Client, caller: Caller
) -> None:
    models.drop(models.a, 2)
    client.reload_config(models.configure({models.a: labelled("stable", 2)}))
    wait_for_states(client, models.a, {1: END, 2: AVAILABLE})
    version_2 = models.base_path(models.a) / "2"
    version_2.rename(version_2.with_name("2.withdrawn"))
    wait_for_states(client, models.a, {1: AVAILABLE})
    assert (answering(caller, models.a), answering(caller, models.a, "stable")) == (1, 2)


@pytest.mark.parametrize("poll_wait_seconds", [0, -1])
def test_reload_changes_version_policy_without_polling(
    start_server: StartServer, tmp_path: Path, scale_model: ScaleModel, poll_wait_seconds: float
) -> None:
    models = Models(tmp_path, scale_model)
    models.configure({models.a: ""})
    server = start_server(
        model_config_file=models.file, file_system_poll_wait_seconds=poll_wait_seconds
    )
    assert_policy_changes(server, models, has_polled=poll_wait_seconds >= 0)


def test_reload_changes_version_policy(server: ModelServer, models: Models) -> None:
    assert_policy_changes(server, models, has_polled=True)


def assert_policy_changes(server: ModelServer, models: Models, *, has_polled: bool) -> None:
    """Asserts that a reload brings versions 1 and 3, and not 2, which are all there."""
    if has_polled:
        server.wait_until_available(models.a, 1)
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        models.drop(models.a, 2, 3)
        policy = "model_version_policy { specific { versions: 1 versions: 3 } }"
        client.reload_config(models.configure({models.a: policy}))
        wait_for_states(client, models.a, {1: AVAILABLE, 3: AVAILABLE})
        assert answering(caller, models.a) == 3
        assert 2 not in {
            status.version for status in client.model_status(models.a) if status.state != END
        }


def test_reload_moves_label_with_its_version_and_back(
    models: Models, client: Client, caller: Caller
) -> None:
    a = models.a
    both = "model_version_policy { specific { versions: 1 versions: 2 } }"
    client.reload_config(models.configure({a: labelled("stable", 1)}))
    assert answering(caller, a, "stable") == 1
    models.drop(a, 2)
    client.reload_config(models.configure({a: f"{both} {labelled('stable', 2)}"}))
    # Until version 2 serves, the label stays on version 1: no request with it fails.
    wait_until(lambda: answering(caller, a, "stable") == 2, "the label to move")
    client.reload_config(models.configure({a: f"{both} {labelled('stable', 1)}"}))
    assert answering(caller, a, "stable") == 1
    assert answering(caller, a) == 2


def test_reload_label_is_honoured_by_model_status(
    models: Models, client: Client, caller: Caller
) -> None:
    labels = f"{labelled('stable', 1)} {labelled('next', 2)}"
    client.reload_config(models.configure({models.a: labels}))
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = models.a
    request.model_spec.version_label = "stable"
    (status,) = caller.model_status(request).model_version_status
    assert (status.version, status.state) == (1, AVAILABLE)
    request.model_spec.version_label = "gold"
    code, message = refusal(lambda: caller.model_status(request))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message == (
        f"Unrecognized servable version label: gold; labels of model '{models.a}': next, stable"
    )
    # Its version is still to come.
    request.model_spec.version_label = "next"
    for ask in (lambda: caller.model_status(request), lambda: answering(caller, models.a, "next")):
        code, message = refusal(ask)
        assert code == grpc.StatusCode.NOT_FOUND
        assert ", to which version label 'next' points; " in message


def test_impossible_reload_changes_nothing(
    server: ModelServer, models: Models, client: Client
) -> None:
    models.drop(models.b, 7)
    impossible = labelled("stable", 9) + "model_version_policy { specific {} }"
    config = models.configure({models.a: "", models.b: impossible})

    clients = scale_clients(server.target, models.a)
    with clients.running():
        clients.wait_for_answers_of(1, 20)
        with pytest.raises(InvalidArgument, match="label 'stable' is of version 9"):
            client.reload_config(config)
        clients.wait_for_answers_of(1, 20)
    assert clients.failures == []
    with pytest.raises(NotFound):
        client.model_status(models.b)
    assert [model.name for model in client.config()[0]] == [models.a]


def test_waiting_reload_yields_to_next_and_status(
    models: Models, client: Client, caller: Caller
) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    request.config.ParseFromString(models.configure({models.a: "", models.empty: ""}))
    reload: Any = caller.channel.unary_unary(RELOAD_CONFIG)
    waiting = reload.future(request.SerializeToString(), timeout=TIMEOUT_SECONDS)
    wait_until(lambda: len(client.config()[0]) == 2, "the model to be configured")
    assert [status.version for status in client.model_status(models.a)] == [1]
    client.reload_config(models.configure({models.a: ""}))
    code, message = refusal(waiting.result)
    assert code == grpc.StatusCode.ABORTED
    assert "again before the new models were available" in message


def test_reload_answers_before_caller_gives_up(models: Models, caller: Caller) -> None:
    models.drop(models.empty)
    request = model_management_pb2.ReloadConfigRequest()
    request.config.ParseFromString(models.configure({models.a: "", models.empty: ""}))
    stub = ModelServiceStub(caller.channel)
    message = ""

    def is_answered() -> bool:
        nonlocal message
        code, message = refusal(lambda: stub.HandleReloadConfigRequest(request, timeout=3))
        # DEADLINE_EXCEEDED comes from gRPC itself if no answer comes in time. That is so if the machine
        # is busy with other work at that moment.
        return code == grpc.StatusCode.UNKNOWN

    wait_until(is_answered, "an answer before the deadline")
    base_path = models.base_path(models.empty)
    assert message.startswith(
        f"1 model(s) did not become available: {models.empty}: no version found in '{base_path}'"
    )
    assert answering(caller, models.a) == 1


def test_reload_warns_of_label_on_missing_version(
    server: ModelServer, models: Models, client: Client
) -> None:
    a = models.a
    warning = "label stable waits for version 9: it is not in the base path"
    models.configure({a: labelled("stable", 9)})
    planned = millpond("config", "plan", models.file, "--target", server.admin_target)
    assert planned.stdout.splitlines()[0] == f"~ model {a}: labels stable - -> 9"
    assert planned.stdout.splitlines()[1].startswith(f"! model {a}: {warning}")
    client.reload_config(encode_model_config(models.file))
    event = wait_for_log(server, "label_of_absent_version", model=a)
    assert (event["label"], event["version"]) == ("stable", 9)

    models.drop(a, 2)
    models.configure({a: labelled("stable", 2)})
    client.reload_config(encode_model_config(models.file))
    server.wait_until_available(a, 2)
    told_of = logged(server, "label_of_absent_version", model=a)
    assert [event["version"] for event in told_of] == [9]


# --- By file --------------------------------------------------------------------------------------


def test_edits_apply_and_bad_ones_are_logged_once(
    start_server: StartServer, tmp_path: Path, scale_model: ScaleModel
) -> None:
    models = Models(tmp_path, scale_model)
    models.configure({models.a: ""})
    settings = models.directory / "settings.toml"
    settings.write_text("")
    server = start_server(
        model_config_file=models.file,
        model_settings_file=settings,
        model_config_file_poll_wait_seconds=0.05,
    )
    server.wait_until_available(models.a, 1)
    models.file.write_text("model_config_list {")
    refused = wait_for_log(server, "config_refused")
    assert "Error parsing text-format" in refused["reason"]
    shown = millpond("status", "--target", server.admin_target).stdout
    assert f"{models.file}: refused" in shown
    assert "goes on with the configuration before it: Error parsing text-format" in shown

    models.drop(models.b, 7)
    models.configure({models.a: "", models.b: ""})
    server.wait_until_available(models.b, 7)
    settings.write_text(f"[models.{models.b}]\nkeep_previous_seconds = 60")
    with Client(server.admin_target) as client:
        wait_until(lambda: client.config()[0][1].settings.keep_previous_seconds, "the settings")
        assert [status.version for status in client.model_status(models.a)] == [1]
    assert len(logged(server, "config_refused")) == 1
    assert "refused" not in millpond("status", "--target", server.admin_target).stdout


# --- By command -----------------------------------------------------------------------------------


def test_config_plan_prints_changes_without_applying(
    server: ModelServer, models: Models, client: Client
) -> None:
    a, b = models.a, models.b
    settings = models.directory / "settings.toml"
    settings.write_text(f'[models.{a}.gates]\nsignature = "warn"')
    models.configure({a: labelled("stable", 1), b: ""})
    done = millpond(
        *("config", "plan", models.file, "--target", server.admin_target, "--settings", settings)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"+ model {b}: {models.base_path(b)}, versions latest 1",
        f"~ model {a}: labels stable - -> 1",
        f"~ model {a}: settings gates.signature enforce -> warn",
    ]
    assert [model.name for model in client.config()[0]] == [a]


def test_config_apply_makes_server_follow_file(
    server: ModelServer, models: Models, caller: Caller
) -> None:
    b = models.b
    models.drop(b, 7)
    models.configure({models.a: "", b: labelled("stable", 7)})
    done = millpond("config", "apply", models.file, "--target", server.admin_target)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"+ model {b}: {models.base_path(b)}, versions latest 1, labels stable 7\n"
    )
    assert answering(caller, b, "stable") == 7
    again = millpond("config", "plan", models.file, "--target", server.admin_target)
    assert again.stdout == "no changes\n"


def test_bad_config_file_exits_one_with_reason(server: ModelServer, models: Models) -> None:
    models.file.write_text("")
    done = millpond("config", "apply", models.file, "--target", server.admin_target)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"millpond config apply: {models.file}: no model_config_list in it; write"
    )


def test_server_without_models_takes_models(
    start_server: StartServer, tmp_path: Path, scale_model: ScaleModel
) -> None:
    models = Models(tmp_path, scale_model)
    models.file.write_text("")
    server = start_server(model_config_file=models.file, model_config_file_poll_wait_seconds=0.05)
    for path in ("/healthz", "/readyz"):
        assert httpx.get(f"{server.url}{path}").status_code == 200
    with caller_to(server.target) as caller, Client(server.admin_target) as client:
        client.reload_config(models.configure({models.a: "logging_config {}"}))
        assert answering(caller, models.a) == 1
        # A file that becomes empty while it is polled changes nothing.
        models.file.write_text("model_config_list {}")
        assert "removes no server's last model" in wait_for_log(server, "config_refused")["reason"]
        assert answering(caller, models.a) == 1
        # A client that says so removes the last model.
        client.reload_config(encode_model_config(models.file))
        # The reload is answered before the model is unloaded, and until then it answers.
        wait_for_log(server, "version_unloaded", model=models.a)
        code, _ = refusal(lambda: caller.predict(request_for(models.a)))
        assert code == grpc.StatusCode.NOT_FOUND
        models.configure({models.a: ""})
        server.wait_until_available(models.a, 1)
