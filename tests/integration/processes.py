"""The kernel's figures of server processes, and commands beside them."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

# The tests, and so their servers, may run on these cores; a server has threads for each.
CORES = os.sched_getaffinity(0)


def _status_mib(process_id: int, field: str) -> float:
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {field} in the status of process {process_id}")


def resident_mib(process_id: int) -> float:
    """Returns the memory that the process holds now."""
    return _status_mib(process_id, "VmRSS")


def anonymous_mib(process_id: int) -> float:
    """Returns the memory without mapped files: allocated and touched."""
    return _status_mib(process_id, "RssAnon")


def address_space_mib_peak(process_id: int) -> float:
    """Returns the largest address space of the process so far: includes allocations that were never
    touched.
    """
    return _status_mib(process_id, "VmPeak")


def cpu_seconds(process_id: int) -> float:
    """Returns the processor time of all threads, ended ones included."""
    # The fields follow the name in parentheses, which may hold spaces. Fields 14 and 15 are utime
    # and stime.
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mapped_files(process_id: int) -> set[str]:
    """Returns the names of the mapped files, mostly libraries."""
    lines = Path(f"/proc/{process_id}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]).name for line in lines if line.count("/")}


def request_thread_nices(process_id: int) -> list[int]:
    """Returns the nice value of each thread that runs requests."""
    nices = []
    for task in Path(f"/proc/{process_id}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            if name.startswith("request-"):
                nices.append(int(fields.split()[16]))
    return nices


def child_processes(process_id: int) -> list[int]:
    """Returns the ids of the processes that the process's main thread has started."""
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(number) for number in text.split()]


def is_standby(process_id: int) -> bool:
    """Returns True if a supervisor started the process as a standby. It may serve by now."""
    return b"MILLPOND_STANDBY=" in Path(f"/proc/{process_id}/environ").read_bytes()


def is_alive(process_id: int) -> bool:
    """Returns True if the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def millpond(
    *arguments: object, run_directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command; `run_directory` is the directory of the servers' sockets."""
    environment = {"MILLPOND_RUN_DIRECTORY": str(run_directory)} if run_directory else {}
    return subprocess.run(
        [sys.executable, "-m", "serving", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, **environment},
    )
