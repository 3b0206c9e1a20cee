"""A local S3 server, moto's, in a process of its own, with one bucket."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.drive.shell_server import free_port
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable

BUCKET = "models"
SECRET = "hunter2222-not-in-any-log"
_REGION = "us-east-1"
_START_SECONDS = 60
_POLL_SECONDS = 0.1


class S3Server:
    """A running server. `port` is its port on 127.0.0.1."""

    def __init__(self, port: int) -> None:
        import botocore.session

        self.port = port
        self.client: Any = botocore.session.Session().create_client(
            "s3",
            region_name=_REGION,
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id="key",
            aws_secret_access_key=SECRET,
        )

    def upload(self, directory: Path, key: str) -> None:
        """Uploads a version, its graph last."""
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        for path in sorted(files, key=lambda path: path.name == "saved_model.pb"):
            self.upload_file(path, f"{key}/{path.relative_to(directory)}")

    def upload_file(self, path: Path, key: str) -> None:
        with path.open("rb") as file:
            self.client.put_object(Bucket=BUCKET, Key=key, Body=file)

    def keys(self, prefix: str) -> list[str]:
        answer = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for item in answer.get("Contents", ())]

    def remove(self, key: str) -> None:
        """Removes all objects below `key`."""
        for found in self.keys(f"{key}/"):
            self.client.delete_object(Bucket=BUCKET, Key=found)


@contextmanager
def s3_server(log: Path, clock: Clock) -> Iterator[S3Server]:
    """Yields a server whose log goes to a file. Raises Unavailable if it does not start."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        server = S3Server(port)
        _create_bucket(server, process, log, clock)
        yield server
    finally:
        process.terminate()
        process.wait()


def _create_bucket(
    server: S3Server, process: "subprocess.Popen[bytes]", log: Path, clock: Clock
) -> None:
    from botocore.exceptions import BotoCoreError

    start_ns = clock.now_ns()
    while True:
        try:
            server.client.create_bucket(Bucket=BUCKET)
        except BotoCoreError as error:
            if process.poll() is not None or seconds_since(clock, start_ns) > _START_SECONDS:
                raise Unavailable(f"the S3 server does not start: {error}; see {log}") from None
            pause(clock, _POLL_SECONDS)
        else:
            return


def s3_environment(port: int) -> Mapping[str, str]:
    """The variables by which a Millpond server reaches the S3 server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": _REGION,
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1"))),
        # Without this, botocore would look for the credentials of a cloud's machine.
        "AWS_EC2_METADATA_DISABLED": "true",
    }
