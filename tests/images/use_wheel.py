"""Uses an installed Millpond as a newcomer would; runs on the machines of try_wheel.py.

Usage: use_wheel.py export|start|use MODELS

Needs nothing of this repository. `export` writes two versions of a model with TensorFlow, the second
one beside the base path. `start` prints the seconds from the start of `millpond serve` to the first
answer. `use` asks over gRPC and REST, swaps the second version in, and checks that another minor
version of TensorFlow is refused. Exits with a message at the first failure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BIN = Path(sys.executable).parent
PORT, HTTP_PORT = 18500, 18501
TIMEOUT_SECONDS = 60.0


def export(models: Path) -> None:
    """Writes y = version * x twice: models/m/1, and models/next, which `use` moves to m/2."""
    import tensorflow as tf

    class Scale(tf.Module):  # type: ignore[misc]
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = tf.Variable(factor)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x):
            return {"y": self.factor * x}

    for factor, directory in ((1.0, models / "m" / "1"), (2.0, models / "next")):
        scale = Scale(factor)
        tf.saved_model.save(scale, str(directory), signatures=scale.predict)


def serve(models: Path) -> subprocess.Popen[bytes]:
    command = [
        str(BIN / "millpond"),
        "serve",
        "--model_name=m",
        f"--model_base_path={models / 'm'}",
    ]
    command += [f"--port={PORT}", f"--rest_api_port={HTTP_PORT}", "--host=127.0.0.1"]
    return subprocess.Popen([*command, "--file_system_poll_wait_seconds=1"])


def ask_rest() -> float:
    """Returns y for x = 3. Raises OSError while the server does not answer."""
    url = f"http://127.0.0.1:{HTTP_PORT}/v1/models/m:predict"
    with urllib.request.urlopen(url, b'{"instances": [3.0]}', timeout=5) as answer:
        return float(json.load(answer)["predictions"][0])


def wait_for(expected: float, server: subprocess.Popen[bytes]) -> None:
    """Waits until the model answers `expected`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    answer: object = None
    while answer != expected:
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"use_wheel.py: expected {expected}, last answer: {answer}")
        try:
            answer = ask_rest()
        except OSError as error:
            answer = error
            time.sleep(0.005)


def stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGTERM)
    status = server.wait(TIMEOUT_SECONDS)
    if status != 0:
        sys.exit(f"use_wheel.py: exit status {status} after SIGTERM")


def start(models: Path) -> None:
    """Prints the seconds to the first answer of three starts: files are cold in the first."""
    for _ in range(3):
        started = time.monotonic()
        server = serve(models)
        wait_for(3.0, server)
        print(f"first answer after {time.monotonic() - started:.2f} s", flush=True)
        stop(server)


def use(models: Path) -> None:
    import numpy as np

    from millpond import Client

    server = serve(models)
    wait_for(3.0, server)
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    jemalloc = {line.split()[-1] for line in maps.splitlines() if "libjemalloc" in line}
    if not jemalloc or not all(str(BIN.parent) in path for path in jemalloc):
        sys.exit(f"use_wheel.py: jemalloc is not the wheel's: {jemalloc}")
    with Client(f"127.0.0.1:{PORT}") as client:
        inputs = {"x": np.array([3, 4], np.float32)}
        before = client.predict("m", inputs)
        (models / "next").rename(models / "m" / "2")
        wait_for(6.0, server)
        after = client.predict("m", inputs)
    if (before.version, after.version) != (1, 2) or list(after.outputs["y"]) != [6, 8]:
        sys.exit(f"use_wheel.py: wrong answers: {before} {after}")
    subprocess.run([str(BIN / "millpond"), "status"], check=True)
    subprocess.run(
        [str(BIN / "millpond"), "predict", "m", f"--target=127.0.0.1:{PORT}"], check=True
    )
    stop(server)
    refuse_other_tensorflow(models)


def refuse_other_tensorflow(models: Path) -> None:
    """Puts the metadata of another TensorFlow before the installed one, as an upgrade would."""
    other = models / "other" / "tensorflow-2.20.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.1\n")
    command = [str(BIN / "millpond"), "serve", f"--model_base_path={models / 'm'}", "--port=0"]
    result = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(other.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    if result.returncode != 1 or "pip install 'tensorflow>=" not in result.stderr:
        sys.exit(f"use_wheel.py: another TensorFlow is not refused: {result}")


if __name__ == "__main__":
    {"export": export, "start": start, "use": use}[sys.argv[1]](Path(sys.argv[2]))
