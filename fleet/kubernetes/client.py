"""Kubernetes' API through its official client, for the pod's own service account or a kubeconfig file.

No other module imports the package `kubernetes`. Replies stay JSON, because the package's own objects would
cost milliseconds for each pod.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from fleet.kubernetes.cluster import ApiFailed, Conflict, Gone, Object
from serving.base.errors import InvalidConfig

OBJECT_SECONDS = 2.0
"""The deadline of a call on a single object. It is below the time between two renewals of the Lease."""

LIST_SECONDS = 30.0
PODS_PER_PAGE = 500
_SILENT_SECONDS = 10.0
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connected(kubeconfig: str, namespace: str) -> "OfficialClient":
    """Makes a client.

    Raises InvalidConfig if neither a pod's account nor the kubeconfig file can be used.
    """
    configuration = kubernetes.client.Configuration()
    own = namespace
    try:
        if kubeconfig:
            kubernetes.config.load_kube_config(kubeconfig, client_configuration=configuration)
            own = own or _namespace_of(kubeconfig)
        else:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
            own = own or _NAMESPACE_FILE.read_text().strip()
    except (kubernetes.config.ConfigException, OSError) as error:
        raise InvalidConfig(
            f"kubernetes: {error}; run in a pod with a service account, or set kubeconfig"
        ) from error
    # The client repeats no call, because some calls must not be made twice. The callers themselves try again.
    configuration.retries = False
    return OfficialClient(kubernetes.client.ApiClient(configuration), own or "default")


def _namespace_of(kubeconfig: str) -> str:
    _, active = kubernetes.config.list_kube_config_contexts(kubeconfig)
    return str(active["context"].get("namespace") or "")


class OfficialClient:
    """Implements `Cluster`."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self._namespace = namespace
        self._core = kubernetes.client.CoreV1Api(api_client)
        self._coordination = kubernetes.client.CoordinationV1Api(api_client)
        self._events = kubernetes.client.EventsV1Api(api_client)
        self._host = str(api_client.configuration.host)

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def host(self) -> str:
        """The URL of the API server."""
        return self._host

    def read_lease(self, name: str) -> Object | None:
        """See `Cluster`."""
        return _existing(self._coordination.read_namespaced_lease, name, self._namespace)

    def create_lease(self, lease: Object) -> Object:
        """See `Cluster`."""
        return _asked(self._coordination.create_namespaced_lease, self._namespace, lease)

    def replace_lease(self, lease: Object) -> Object:
        """See `Cluster`."""
        name = lease["metadata"]["name"]
        return _asked(self._coordination.replace_namespaced_lease, name, self._namespace, lease)

    def read_config_map(self, name: str) -> Object | None:
        """See `Cluster`."""
        return _existing(self._core.read_namespaced_config_map, name, self._namespace)

    def create_config_map(self, config_map: Object) -> Object:
        """See `Cluster`."""
        return _asked(self._core.create_namespaced_config_map, self._namespace, config_map)

    def replace_config_map(self, config_map: Object) -> Object:
        """See `Cluster`."""
        name = config_map["metadata"]["name"]
        return _asked(self._core.replace_namespaced_config_map, name, self._namespace, config_map)

    def create_event(self, event: Object) -> None:
        """See `Cluster`."""
        _asked(self._events.create_namespaced_event, self._namespace, event)

    def list_pods(self, selector: str) -> tuple[list[Object], str]:
        """See `Cluster`. In pages, so that no reply grows with the fleet."""
        pods: list[Object] = []
        position: dict[str, str] = {}
        while True:
            page = _asked(
                self._core.list_namespaced_pod,
                self._namespace,
                label_selector=selector,
                limit=PODS_PER_PAGE,
                seconds=LIST_SECONDS,
                **position,
            )
            pods += page["items"]
            if not page["metadata"].get("continue"):
                return pods, page["metadata"]["resourceVersion"]
            position = {"_continue": page["metadata"]["continue"]}

    def watch_pods(self, selector: str, version: str, seconds: int) -> Iterator[Object]:
        """See `Cluster`."""
        with _failures():
            response = self._core.list_namespaced_pod(
                self._namespace,
                label_selector=selector,
                watch=True,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=seconds,
                _preload_content=False,
                # This deadline ends a watch whose connection is cut.
                _request_timeout=(OBJECT_SECONDS, seconds + _SILENT_SECONDS),
            )
            try:
                for line in _lines(response):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _failure(event["object"].get("code"), event["object"].get("message"))
                    yield event
            finally:
                response.close()
                response.release_conn()


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(amt=None, decode_content=True):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line for line in lines if line.strip())


def _existing(call: Callable[..., Any], *arguments: Any) -> Object | None:
    try:
        return _asked(call, *arguments)
    except ApiFailed as error:
        if error.status == 404:
            return None
        raise


def _asked(
    call: Callable[..., Any], *arguments: Any, seconds: float = OBJECT_SECONDS, **options: Any
) -> dict[str, Any]:
    """Calls a method of the client, and returns the JSON of its reply. Raises ApiFailed."""
    with _failures():
        response = call(*arguments, **options, _preload_content=False, _request_timeout=seconds)
        answer: dict[str, Any] = json.loads(response.data)
        return answer


@contextmanager
def _failures() -> Iterator[None]:
    """Raises the client's errors as ApiFailed, with the HTTP status."""
    try:
        yield
    except ApiFailed:
        raise
    except ApiException as error:
        raise _failure(error.status, _reason(error)) from error
    # The client reads the account's token again whenever its file changes, and that may raise ConfigException.
    except (
        urllib3.exceptions.HTTPError,
        kubernetes.config.ConfigException,
        OSError,
        ValueError,
        KeyError,
    ) as error:
        raise ApiFailed(f"{type(error).__name__}: {error}") from error


def _failure(status: int | None, reason: object) -> ApiFailed:
    kind = {409: Conflict, 410: Gone}.get(status or 0, ApiFailed)
    return kind(f"Kubernetes refuses with {status}: {reason}", status or 0)


def _reason(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
