"""A real server, started as a pod of the Helm chart starts it.

The chart is rendered, its ConfigMap is written as the kubelet does, and the image's entry point runs
with the container's arguments. Their directories lead into the test's own, and the ports are free ones.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from loadtest.drive.shell_server import free_port
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.conftest import REPOSITORY
from tests.integration.exports import ScaleModel
from tests.kubernetes.manifests import Release, http_probes, render_all

ENTRYPOINT = Path(REPOSITORY, "scripts", "docker", "entrypoint.sh")
METRIC = "serving_in_flight_requests"


class Pod:
    """A server with the arguments, files and volumes of the chart's container."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ports = {"grpc": free_port(), "http": free_port()}
        self._process: subprocess.Popen[bytes] | None = None
        self._revision = 0

    @property
    def models(self) -> Path:
        return self._root / "models"

    def mount(self, release: Release) -> None:
        """Makes the directories of the volumes, and the files of the ConfigMap."""
        for mount in release.container["volumeMounts"]:
            self._inside(mount["mountPath"]).mkdir(parents=True, exist_ok=True)
        self.write_config(release)

    def write_config(self, release: Release) -> None:
        """Replaces the files as the kubelet does: `..data` is a link to a directory of a revision."""
        directory = self._inside("/etc/millpond")
        self._revision += 1
        revision = directory / f"..{self._revision}"
        revision.mkdir()
        for name, text in release.only("ConfigMap")["data"].items():
            (revision / name).write_text(text.replace('"/models/', f'"{self.models}/'))
            if not (directory / name).is_symlink():
                (directory / name).symlink_to(Path("..data", name))
        (directory / "..new").symlink_to(revision.name)
        (directory / "..new").rename(directory / "..data")

    def start(self, release: Release) -> None:
        arguments = [self._translated(argument) for argument in release.container["args"]]
        self._process = subprocess.Popen(
            [ENTRYPOINT, *arguments, "--host=127.0.0.1", "--admin_address=off"],
            env={**os.environ, **self.environment},
            stderr=(self._root / "log").open("wb"),
        )

    @property
    def environment(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        grpc_port, http_port = (str(self.ports[name]) for name in ("grpc", "http"))
        return {"PATH": path, "MILLPOND_PORT": grpc_port, "MILLPOND_HTTP_PORT": http_port}

    def get(self, path: str, port: str = "http") -> tuple[int, str]:
        """Returns the status and the body; status 0 if the server does not answer."""
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def is_ready(self, model: str = "") -> bool:
        return self.get(f"/readyz?model={model}" if model else "/readyz")[0] == 200

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(TIMEOUT_SECONDS)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return (self._root / "log").read_text()

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _translated(self, argument: str) -> str:
        name, _, value = argument.partition("=")
        return f"{name}={self._inside(value)}" if value.startswith("/") else argument


@pytest.fixture(scope="module")
def releases() -> list[Release]:
    """The chart with one model, and with a second one."""
    first = {"name": "scale", "basePath": "/models/scale"}
    second = {"name": "other", "basePath": "/models/other"}
    values = [{"models": models, "configPollSeconds": 1} for models in ([first], [first, second])]
    return render_all(values)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(tmp_path)
    yield pod
    pod.kill()
    shutil.rmtree(pod.models, ignore_errors=True)


def test_pod_of_chart_lives(pod: Pod, releases: list[Release], scale_model: ScaleModel) -> None:
    release, with_second_model = releases
    pod.mount(release)
    pod.start(release)
    probes = dict(http_probes(release.container))

    # Alive without a model, so that no probe ends a pod that waits for its first version.
    assert probes["startupProbe"]["path"] == probes["livenessProbe"]["path"]
    wait_until(lambda: pod.get(probes["livenessProbe"]["path"])[0] == 200, "the pod is alive")
    assert pod.get(probes["readinessProbe"]["path"])[0] == 503

    scale_model.write(pod.models / "scale", 1)
    wait_until(pod.is_ready, "the pod is ready")
    status, page = pod.get("/metrics")
    assert (status, f"\n{METRIC} 0\n" in page) == (200, True)
    health = subprocess.run(
        [sys.executable, "-m", "serving", "health"],
        env={**os.environ, **pod.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (health.returncode, health.stderr) == (0, "")

    # A changed ConfigMap needs no new pod.
    scale_model.write(pod.models / "other", 1)
    pod.write_config(with_second_model)
    wait_until(lambda: pod.is_ready("other"), "the second model serves")

    assert pod.stop() == 0
    events = [json.loads(line)["event"] for line in pod.log().splitlines()]
    assert events[0] == "starting"
