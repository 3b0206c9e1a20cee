"""A control group with a limit on memory, for a server that must not take the machine's."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable

_REMEDY = (
    "run this as root, on a machine or in a container that may make control groups (docker run "
    "--privileged --cgroupns=host)"
)

_END_SECONDS = 30.0
_LOOK_SECONDS = 0.1

# The files of both versions of control groups: the limit, and the most that was ever in use.
_V1 = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
_V2 = ("memory.max", "memory.peak")


class ControlGroup:
    """A group below this process's own inside `with`. Its processes must have ended at the end."""

    def __init__(self, name: str, limit_bytes: int, clock: Clock, root: Path = Path("/")) -> None:
        """`root` is the root of the file system; tests have another one."""
        self._clock = clock
        self._name = name
        self._limit_bytes = limit_bytes
        self._root = root
        self._path = Path()
        self._peak_name = ""

    def __enter__(self) -> "ControlGroup":
        """Raises Unavailable if this process may not make the group."""
        parent, (limit_name, self._peak_name) = self._parent()
        self._path = parent / self._name
        try:
            self._path.mkdir()
            (self._path / limit_name).write_text(str(self._limit_bytes))
        except OSError as error:
            with suppress(OSError):
                self._path.rmdir()
            raise Unavailable(
                f"no control group with a limit on memory can be made at {self._path}: "
                f"{error.strerror}; {_REMEDY}"
            ) from error
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        begin_ns = self._clock.now_ns()
        while True:
            try:
                self._path.rmdir()
            except OSError as error:
                # The kernel may need a while to free a process of some GB whose end is known already.
                is_late = seconds_since(self._clock, begin_ns) > _END_SECONDS
                if error.errno != errno.EBUSY or is_late:
                    raise
                pause(self._clock, _LOOK_SECONDS)
            else:
                return

    @property
    def command(self) -> tuple[str, ...]:
        """The command that enters the group, and then becomes the command that follows it."""
        return ("/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._path / "cgroup.procs"))

    @property
    def peak_bytes(self) -> int:
        """The most memory that its processes have had at a time."""
        return int((self._path / self._peak_name).read_text())

    def _parent(self) -> tuple[Path, tuple[str, str]]:
        """Finds a group that may have subgroups with limits on memory, and the names of its files."""
        mounts = self._root / "sys/fs/cgroup"
        lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        paths = {line.split(":")[1]: line.split(":", 2)[2].lstrip("/") for line in lines}
        for controllers, path in paths.items():
            if "memory" in controllers.split(","):
                # A container may see its own group as the root.
                mount = mounts / "memory"
                own = mount / path
                return (own if own.is_dir() else mount), _V1
        own = mounts / paths.get("", "")
        for group in (own, own.parent):
            # A group with processes of its own cannot give a controller to subgroups, but its parent can.
            with suppress(OSError):
                if "memory" in (group / "cgroup.subtree_control").read_text().split():
                    return group, _V2
        raise Unavailable(
            f"neither {own} nor its parent gives a limit on memory to subgroups; {_REMEDY}"
        )


def own_name(purpose: str) -> str:
    """Makes a name for a group that no other process uses."""
    return f"millpond-{purpose}-{os.getpid()}"
