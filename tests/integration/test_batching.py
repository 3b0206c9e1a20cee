"""Batching: the flags, the parameter files and the model settings, with clients in parallel.

The model leaves a file for each number of rows that a run of it had.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import pytest

from serving.base.errors import StatusCode, Unavailable
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.batches import (
    CLIENT_COUNT,
    FLAGS,
    answered_count,
    scrape,
    take_run_seconds,
)
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    array,
    caller_to,
    channel_to,
    is_right,
    predict_request,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.example_requests import fetched_arrays, session_run
from tests.integration.exports import drop, let_settle
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient
from tests.integration.steady_clients import SteadyThreads

# The first batches after a load are checked against single runs. This number of answers ends that.
ANSWERS_OF_CHECKS = 400
VERSION_FILE = "batching_params.pbtxt"
PHASES = ("queue", "decode", "batch", "run", "encode")


def export(path: Path, *functions: Callable[[Any], dict[str, Any]], dtype: Any = "float32") -> None:
    """Exports a model with a signature for each function of a matrix `x`, with the function's name."""
    import tensorflow as tf

    spec = tf.TensorSpec([None, None], dtype, "x")
    signatures = {
        function.__name__: tf.function(function).get_concrete_function(x=spec)
        for function in functions
    }
    tf.saved_model.save(tf.Module(), str(path), signatures=signatures)
    let_settle(path)


class BatchedModel:
    """`y` is the sum of each row of `x`. `whole` sums everything, so it cannot be batched."""

    def __init__(self, directory: Path) -> None:
        self._runs = directory / "runs"
        self._runs.mkdir()
        self.path = directory / "export"
        self._export()

    def _export(self) -> None:
        import tensorflow as tf

        def serving_default(x: Any) -> dict[str, Any]:
            rows = tf.strings.as_string(tf.shape(x)[0])
            note = tf.io.write_file(tf.strings.join([f"{self._runs}/", rows]), "")
            with tf.control_dependencies([note, *take_run_seconds()]):
                return {"y": tf.reduce_sum(x, axis=1)}

        def whole(x: Any) -> dict[str, Any]:
            return {"y": tf.reduce_sum(x)}

        export(self.path, serving_default, whole)

    def take_runs(self) -> set[int]:
        """Returns the numbers of rows of the runs since the last call."""
        names = [path.name for path in self._runs.iterdir()]
        for name in names:
            (self._runs / name).unlink(missing_ok=True)
        return set(map(int, names))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BatchedModel:
    return BatchedModel(tmp_path_factory.mktemp("batched"))


def mixes_large_numbers(x: Any) -> dict[str, Any]:
    """Adds the numbers of other rows that are 1 or more. The numbers that a load makes up are less.

    The row analysis does not know ScatterNd, which adds all rows to one number.
    """
    import tensorflow as tf

    large = tf.reduce_sum(tf.where(x >= 1, x, 0.0), axis=1)
    one_place = tf.zeros_like(tf.cast(x[:, :1], tf.int32))
    of_all = tf.scatter_nd(one_place, large, [1])
    with tf.control_dependencies(take_run_seconds()):
        return {"y": tf.reduce_sum(x, axis=1) + of_all - large}


def drops_a_row(x: Any) -> dict[str, Any]:
    """Drops the last row if their number is no power of two. The batches that a load runs have one."""
    import tensorflow as tf

    rows = tf.shape(x)[0]
    is_odd = tf.cast(tf.bitwise.bitwise_and(rows, rows - 1) != 0, tf.int32)
    with tf.control_dependencies(take_run_seconds()):
        return {"y": tf.reduce_sum(x, axis=1)[: rows - is_odd]}


@pytest.fixture(scope="module")
def faulty_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model of two signatures that pass the verification at the load and fail later."""
    path = tmp_path_factory.mktemp("faulty") / "export"
    export(path, mixes_large_numbers, drops_a_row)
    return path


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    """Requests are batched unless a model's settings say otherwise."""
    return {
        **FLAGS,
        "enable_batching": True,
        "enable_session_run": True,
        "rest_api_num_threads": 1,
    }


@pytest.fixture(scope="module")
def plain_host(
    start_module_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> ModelHost:
    """A server without a flag of batching."""
    return ModelHost(start_module_server, tmp_path_factory.mktemp("plain"), **FLAGS)


AddModel = Callable[..., HostedModel]


@pytest.fixture
def add(host: ModelHost, model: BatchedModel) -> AddModel:
    """Adds a model whose version 1 is the batched model, with these settings of batching if any."""

    def add_one(**batching: object) -> HostedModel:
        settings = {"batching": {"enabled": True, **batching}} if batching else None
        return host.model(prefix="m", settings=settings).serve(model.path)

    return add_one


def parameters(tmp_path: Path, text: str) -> str:
    path = tmp_path / "batching.txt"
    path.write_text(text)
    return str(path)


class ClientsOfOneConnection(SteadyThreads):
    """Threads that send a row each over one connection, so that a server reads several at once."""

    def __init__(
        self, hosted: HostedModel, *, are_lengths_equal: bool = True, signature_name: str = ""
    ) -> None:
        super().__init__(CLIENT_COUNT)
        self._target = hosted.server.target
        self._name = hosted.name
        self._are_lengths_equal = are_lengths_equal
        self._signature_name = signature_name

    @contextmanager
    def sending(self) -> Iterator["ClientsOfOneConnection"]:
        """Sends until the end of `with`; every answer must be right."""
        with caller_to(self._target) as self._caller, self.running():
            yield self
        assert self.failures == []

    def run(self, number: int) -> None:
        column_count = 3 if self._are_lengths_equal else number + 1
        x = np.full((1, column_count), 1 + number / 4, np.float32)
        request = predict_request(self._name, {"x": x}, signature_name=self._signature_name)
        while not self.is_stopping:
            try:
                response = self._caller.predict(request)
            except grpc.RpcError as error:
                self.failures.append(str(error))
                continue
            answer = array(response.outputs["y"])
            if is_right(answer, x.sum(axis=1)):
                self.answer_counts[response.model_spec.version.value] += 1
            else:
                self.failures.append(f"wrong answer to {x}: {answer}")


def sizes_under_load(
    hosted: HostedModel, model: BatchedModel, version: int = 1, *, are_lengths_equal: bool = True
) -> set[int]:
    """Returns the numbers of rows of runs while clients send."""
    clients = ClientsOfOneConnection(hosted, are_lengths_equal=are_lengths_equal)
    with clients.sending():
        clients.wait_for_answers_of(version, ANSWERS_OF_CHECKS)
        model.take_runs()
        clients.wait_for_answers_of(version, ANSWERS_OF_CHECKS)
        return model.take_runs()


def wait_for_sizes(
    hosted: HostedModel, model: BatchedModel, *expected: set[int], version: int = 1
) -> None:
    """Waits until all runs have the rows of one of `expected`.

    The first batches of each kind, for example padded ones, are checked by runs of single rows. On a busy
    machine a kind may be seen late.
    """
    wait_until(
        lambda: sizes_under_load(hosted, model, version) in expected, f"runs of {expected} rows"
    )


def wait_for_batches(hosted: HostedModel, model: BatchedModel, **how: Any) -> None:
    """Sends until requests have shared a run."""
    wait_until(lambda: has_batches(sizes_under_load(hosted, model, **how)), "a shared run")


def has_batches(sizes: set[int]) -> bool:
    assert max(sizes) <= CLIENT_COUNT
    return max(sizes) > 1


def test_enable_batching_batches_while_busy(add: AddModel, model: BatchedModel):
    wait_for_batches(add(), model)


def test_model_settings_turn_batching_on_and_off(plain_host: ModelHost, model: BatchedModel):
    hosted = plain_host.model(prefix="m").serve(model.path)
    assert sizes_under_load(hosted, model) == {1}
    batching = {"enabled": True, "max_batch_size": 4, "allowed_batch_sizes": [4]}
    hosted.configure({"batching": batching})
    hosted.serve(model.path, 2)
    wait_for_sizes(hosted, model, {4}, version=2)
    hosted.configure({"batching": {"enabled": False}})
    hosted.serve(model.path, 3)
    assert sizes_under_load(hosted, model, version=3) == {1}


def test_batches_of_a_version_are_run_on_the_next(add: AddModel, model: BatchedModel):
    hosted = add()
    model.take_runs()
    hot: set[int] = set()
    clients = ClientsOfOneConnection(hosted)
    with clients.sending():
        while not hot:
            clients.wait_for_answers_of(1, ANSWERS_OF_CHECKS)
            # The verification of any version runs powers of two.
            hot = {rows for rows in model.take_runs() if rows & (rows - 1)}
    hosted.serve(model.path, 2)
    assert hot <= model.take_runs()
    warmed = hosted.only_logged("batches_warmed_up")
    assert (warmed["version"], warmed["count"] >= len(hot)) == (2, True)


class SessionRunClients(SteadyThreads):
    """Threads that send SessionRun with a row each over one connection."""

    def __init__(self, channel: grpc.Channel, name: str, feed: str, fetch: str) -> None:
        super().__init__(CLIENT_COUNT)
        self._channel = channel
        self._name = name
        self._feed = feed
        self._fetch = fetch

    def run(self, number: int) -> None:
        x = np.full((1, 3), number, np.float32)
        while not self.is_stopping:
            response = session_run(
                self._channel, model=self._name, feeds={self._feed: x}, fetches=[self._fetch]
            )
            answer = fetched_arrays(response)[self._fetch]
            if is_right(answer, x.sum(axis=1)):
                self.answer_counts[1] += 1
            else:
                self.failures.append(f"wrong answer to {x}: {answer}")


def test_session_runs_are_never_batched(add: AddModel, model: BatchedModel):
    hosted = add()
    url = f"{hosted.server.url}/v1/models/{hosted.name}/metadata"
    with urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        signatures = json.loads(response.read())["metadata"]["signature_def"]["signature_def"]
    signature = signatures["serving_default"]
    names = signature["inputs"]["x"]["name"], signature["outputs"]["y"]["name"]
    model.take_runs()
    with channel_to(hosted.server.target) as channel:
        clients = SessionRunClients(channel, hosted.name, *names)
        with clients.running():
            clients.wait_for_answers_of(1, ANSWERS_OF_CHECKS)
        assert clients.failures == []
    assert model.take_runs() == {1}
    metrics = scrape(hosted.server)
    assert metrics.total("serving_batch_requests_count", model=hosted.name) == 0


@pytest.fixture(scope="module")
def faulty(module_host: ModelHost, faulty_model: Path) -> HostedModel:
    """Version 1 of the faulty model."""
    return module_host.model(prefix="faulty").serve(faulty_model)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (
            "mixes_large_numbers",
            r"output 'y', row 0: \S+ in a batch of \d+ rows, \S+ alone \(tolerance \S+\)",
        ),
        ("drops_a_row", r"an output of a batch of \d+ rows has another number of rows"),
    ],
)
def test_signature_that_fails_when_live_is_refused(
    faulty: HostedModel, signature: str, reason: str
):
    server = faulty.server
    labels = {"model": faulty.name, "version": "1", "signature": signature}
    assert scrape(server).total("serving_batching_on", **labels) == 1
    clients = ClientsOfOneConnection(faulty, signature_name=signature)
    with clients.sending():
        refused = faulty.wait_for_log("batching_refused", version=1, signature=signature)
        clients.wait_for_answers_of(1, ANSWERS_OF_CHECKS)
        metrics = scrape(server)
        clients.wait_for_answers_of(1, ANSWERS_OF_CHECKS)
    assert refused["level"] == "warning"
    assert re.fullmatch(reason, refused["reason"])
    assert faulty.logged("batching_refused", signature=signature) == [refused]
    assert metrics.total("serving_batching_on", **labels) == 0
    # Its requests run alone from then on.
    runs = "serving_batch_run_seconds_count"
    assert scrape(server).total(runs, **labels) == metrics.total(runs, **labels) > 0


def test_batches_are_padded_to_allowed_sizes(add: AddModel, model: BatchedModel):
    hosted = add(max_batch_size=10, allowed_batch_sizes=[4, 10])
    wait_for_sizes(hosted, model, {4}, {4, 10}, {10})


@pytest.mark.parametrize("is_padded", [False, True], ids=["alone", "padded"])
def test_inputs_of_other_lengths_are_batched_if_padded(
    add: AddModel, model: BatchedModel, *, is_padded: bool
):
    hosted = add(pads_variable_length_inputs=is_padded)
    if is_padded:
        wait_for_batches(hosted, model, are_lengths_equal=False)
    else:
        assert sizes_under_load(hosted, model, are_lengths_equal=False) == {1}


def maximum(x: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {"y": tf.reduce_max(x, axis=1)}


def minimum(x: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {"y": tf.reduce_min(x, axis=1)}


def integer_maximum(x: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {"y": tf.reduce_max(x, axis=1)}


def test_extremes_of_rows_are_never_padded(host: ModelHost, tmp_path: Path):
    """Padding by zeros changes a maximum of numbers below zero only, and a minimum of those above."""
    export(tmp_path / "floats", maximum, minimum)
    export(tmp_path / "integers", integer_maximum, dtype="int64")
    settings = {"batching": {"enabled": True, "pads_variable_length_inputs": True}}
    for path, *signatures in (("floats", "maximum", "minimum"), ("integers", "integer_maximum")):
        hosted = host.model(prefix=path, settings=settings).serve(tmp_path / path)
        for signature in signatures:
            refused = hosted.only_logged("batching_refused", signature=signature)
            reason = str(refused["reason"])
            assert reason.startswith("its inputs are not padded: output 'y', row 0: ")


@pytest.mark.parametrize(("is_split", "sizes"), [(False, {20}), (True, {6, 2})])
def test_large_request_is_answered(
    add: AddModel, model: BatchedModel, sizes: set[int], *, is_split: bool
):
    hosted = add(max_batch_size=6, splits_large_requests=is_split)
    model.take_runs()
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    with Client(hosted.server.target) as client:
        answer = client.predict(hosted.name, {"x": x})
    assert is_right(answer.outputs["y"], x.sum(axis=1))
    assert model.take_runs() == sizes


def test_metrics_of_batches_add_up_to_the_answers(add: AddModel, model: BatchedModel):
    hosted = add(max_batch_size=16, allowed_batch_sizes=[1, 4, 16])
    wait_for_batches(hosted, model)
    x = np.ones((5, 3), np.float32)
    with Client(hosted.server.target) as client:
        client.predict(hosted.name, {"x": x})
    metrics = scrape(hosted.server)
    answered = answered_count(metrics, hosted.name, 1)
    of_version = {"model": hosted.name, "version": "1"}
    batches = {**of_version, "signature": "serving_default"}
    assert metrics.total("serving_batch_requests_sum", **batches) == answered
    assert metrics.total("serving_batch_rows_sum", **batches) == answered + 4
    assert metrics.total("serving_batch_wait_seconds_count", **batches) == answered
    runs = metrics.total("serving_batch_run_seconds_count", **batches)
    assert metrics.total("serving_batch_rows_count", **batches) == runs < answered
    assert metrics.total("serving_batch_requests_count", **batches) == runs
    for phase in PHASES:
        name = "serving_request_phase_seconds_count"
        assert metrics.total(name, phase=phase, method="Predict", **of_version) == answered
    assert metrics.total("serving_batch_padding_rows_total", **batches) > 0
    assert metrics.total("serving_batching_on", **batches) == 1
    assert metrics.total("serving_batching_on", signature="whole", **of_version) == 0


def test_batches_of_an_unloaded_version_still_count(add: AddModel, model: BatchedModel):
    hosted = add()
    clients = ClientsOfOneConnection(hosted)
    with clients.sending():
        clients.wait_for_answers_of(1, 50)
        drop(model.path, hosted.base_path, 2)
        clients.wait_for_answers_of(2, 50)
    hosted.wait_for_states({1: END, 2: AVAILABLE})
    metrics = scrape(hosted.server)
    for version in (1, 2):
        labels = {"model": hosted.name, "version": str(version)}
        requests = metrics.total("serving_batch_requests_sum", **labels)
        assert requests == answered_count(metrics, hosted.name, version) > 0


def test_run_of_a_batch_has_no_wait_for_others(add: AddModel, model: BatchedModel):
    hosted = add()
    wait_for_batches(hosted, model)
    metrics = scrape(hosted.server)
    of_model = {"model": hosted.name}
    name = "serving_request_phase_seconds_sum"
    spent = {
        phase: metrics.total(name, method="Predict", phase=phase, **of_model) for phase in PHASES
    }
    latency = "serving_request_latency_seconds_sum"
    total = metrics.total(latency, method="Predict", code="OK", **of_model)
    assert sum(spent.values()) == pytest.approx(total, rel=1e-6)
    # Each request of a batch waits before its run, as the figures of batches say, and after it.
    waited = metrics.total("serving_batch_wait_seconds_sum", **of_model)
    assert spent["batch"] >= waited > 0
    assert min(spent.values()) > 0


def page_of_model(hosted: HostedModel) -> dict[str, Any]:
    """Returns the only version of the model as the live page shows it."""
    with urlopen(
        f"{hosted.server.url}/v1/page?model={hosted.name}", timeout=TIMEOUT_SECONDS
    ) as response:
        (version,) = json.loads(response.read())["versions"]
    assert isinstance(version, dict)
    return version


def test_status_and_page_show_batched_signatures(add: AddModel):
    hosted = add()
    with ClientsOfOneConnection(hosted).sending():
        wait_until(
            lambda: set(page_of_model(hosted)["phases"]) == set(PHASES), "the phases on the page"
        )
    page = page_of_model(hosted)
    with Client(hosted.server.admin_target) as admin:
        (version,) = admin.describe_models()[hosted.name]["versions"]
    (on, refused) = (
        {state["signature"]: state for state in version["batching"]}[name]
        for name in ("serving_default", "whole")
    )
    answered = answered_count(scrape(hosted.server), hosted.name, 1)
    assert on["request_count"] == on["row_count"] == answered
    assert on["requests_per_run"] == on["request_count"] / on["run_count"]
    assert (refused["is_on"], refused["requests_per_run"]) == (False, None)
    # A signature that mixes rows is refused at the load.
    event = hosted.only_logged("batching_refused")
    assert (event["level"], event["signature"]) == ("warning", "whole")
    assert refused["refusal"] == event["reason"]
    shown = {state["signature"]: state for state in page["batching"]}
    assert 0 < shown["serving_default"]["run_count"] <= on["run_count"]
    assert shown["whole"]["refusal"] == refused["refusal"]


def test_version_has_its_own_file(
    start_module_server: StartServer,
    model: BatchedModel,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
):
    path = parameters(tmp_path, "max_batch_size { value: 5 } allowed_batch_sizes: 5")
    hosted = ModelHost(
        start_module_server,
        tmp_path_factory.mktemp("files"),
        **FLAGS,
        enable_batching=True,
        enable_per_model_batching_parameters=True,
        batching_parameters_file=path,
    ).model(prefix="m")
    hosted.serve(model.path)
    wait_for_sizes(hosted, model, {5})
    with ClientsOfOneConnection(hosted).sending() as clients:
        text = "max_batch_size { value: 7 } allowed_batch_sizes: 7"
        drop_with_file(model, hosted.base_path, 2, text)
        clients.wait_for_answers_of(2)
        version = drop_with_file(model, hosted.base_path, 3, "max_batch_size { value: 7 } rows: 7")
        hosted.wait_for_states({2: AVAILABLE, 3: END})
        with Client(hosted.server.target) as client:
            (status,) = client.model_status(hosted.name, 3)
        assert status.error_code == StatusCode.INVALID_ARGUMENT
        assert f"{version}/{VERSION_FILE}: " in status.error_message
        assert 'no field named "rows"' in status.error_message
        clients.wait_for_answers_of(2, ANSWERS_OF_CHECKS)
        (version / VERSION_FILE).write_text("max_batch_size { value: 7 }")
        clients.wait_for_answers_of(3)


def bursts_over_http(hosted: HostedModel) -> None:
    """Sends a row on each of many connections at once, again and again, and checks the answers."""
    clients = [RestClient(hosted.server) for _ in range(CLIENT_COUNT)]
    for _ in range(ANSWERS_OF_CHECKS // CLIENT_COUNT):
        for number, client in enumerate(clients):
            body = {"instances": [[number, 0.5, 1]]}
            client.send("POST", f"/v1/models/{hosted.name}:predict", body)
        for number, client in enumerate(clients):
            status, document, _ = client.receive()
            assert (status, document) == (200, {"predictions": [number + 1.5]})


def test_requests_over_http_are_batched(add: AddModel, model: BatchedModel):
    hosted = add()

    def is_shared() -> bool:
        model.take_runs()
        bursts_over_http(hosted)
        return has_batches(model.take_runs())

    wait_until(is_shared, "a shared run")


def test_more_requests_than_may_wait_are_refused(add: AddModel):
    hosted = add(max_batch_size=1, max_enqueued_batches=2)
    request = predict_request(hosted.name, {"x": np.ones((1, 3), np.float32)})
    refused: list[Any] = []
    with caller_to(hosted.server.target) as caller:

        def is_refused() -> bool:
            calls = [caller.start_predict(request) for _ in range(64)]
            errors = [call.exception() for call in calls]
            assert None in errors
            refused.extend(error for error in errors if error is not None)
            return bool(refused)

        wait_until(is_refused, "more requests than may wait")
        assert {error.code() for error in refused} == {grpc.StatusCode.UNAVAILABLE}
        assert "max_enqueued_batches" in refused[0].details()
        assert is_right(array(caller.predict(request).outputs["y"]), np.full(1, 3))


def drop_with_file(model: BatchedModel, base_path: Path, version: int, text: str) -> Path:
    beside = drop(model.path, base_path, f"{version}.prepared")
    (beside / VERSION_FILE).write_text(text)
    return let_settle(beside).rename(base_path / str(version))


def test_file_of_a_version_needs_its_flag(add: AddModel, model: BatchedModel):
    hosted = add()
    drop_with_file(model, hosted.base_path, 2, "not read")
    hosted.wait_until_available(2)


def test_wrong_parameters_stop_the_start(
    start_server: StartServer, base_path: Path, tmp_path: Path
):
    path = parameters(tmp_path, "max_batch_size { value: 8 }\nbatch_size { value: 9 }")
    with pytest.raises(Unavailable, match=rf"{path}: .* 2:1 : .*no field named \"batch_size\""):
        start_server(base_path=base_path, enable_batching=True, batching_parameters_file=path)
