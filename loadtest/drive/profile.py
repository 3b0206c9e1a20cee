"""A profile of running processes by Linux's `perf`."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from serving.base.errors import Unavailable

_SAMPLES_PER_SECOND = 1_999


@contextmanager
def recorded(process_ids: Sequence[int], path: Path) -> Iterator[None]:
    """Records all threads of the processes into `path` while the block runs.

    Uses the processor's clock, because virtual machines often have no counters. Raises Unavailable if
    there is no `perf`, or if it may not record.
    """
    command = [
        *("perf", "record", "--quiet", "--event=cpu-clock", f"--freq={_SAMPLES_PER_SECOND}", "-g"),
        *(f"--pid={','.join(map(str, process_ids))}", f"--output={path}"),
    ]
    try:
        perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise Unavailable("perf is not installed: apt-get install linux-perf") from None
    try:
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        errors = perf.communicate()[1].decode(errors="replace")
    if not path.exists():
        raise Unavailable(f"perf record: {errors.strip()}")


def script_of(path: Path, fields: str) -> str:
    """Reads the samples of a recorded profile as text. Raises Unavailable if perf fails."""
    result = subprocess.run(
        ["perf", "script", f"--input={path}", f"--fields={fields}"],
        check=False,
        capture_output=True,
    )
    if result.returncode != 0:
        raise Unavailable(f"perf script: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout.decode(errors="replace")
