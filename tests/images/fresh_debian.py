"""Fresh Debian folders made by debootstrap, and commands that run in them as on a separate machine.

Needs root, for chroot and namespaces. The settings for access to this machine's registries
(resolver, pip's settings, certificates, proxies) are passed on; nothing else of this machine is
visible inside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SUITE = "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = re.compile(r"PIP_(INDEX_URL|DEFAULT_TIMEOUT)|(https?|no|all)_proxy", re.IGNORECASE)
MACHINE_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Not the path of Debian's own certificates: installing ca-certificates would overwrite them.
CERTIFICATES_INSIDE = "/etc/machine-certificates.crt"


def require_root() -> None:
    if os.geteuid() != 0:
        raise SystemExit("only root may change roots: run this as root")
    if shutil.which("debootstrap") is None:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-qq", "-y", "debootstrap"], check=True)


def bootstrap(root: Path, packages: Sequence[str] = (), suite: str = SUITE) -> None:
    """Makes `root` a minimal Debian with `packages`, unless it exists."""
    if root.is_dir():
        return
    unfinished = root.with_name(root.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase"]
    if packages:
        command.append(f"--include={','.join(packages)}")
    print(f"making a fresh Debian ({suite}) in {root}", flush=True)
    subprocess.run([*command, suite, str(unfinished)], check=True, stdout=subprocess.DEVNULL)
    for name in MACHINE_FILES:
        if Path(name).is_file():
            shutil.copy(name, inside(unfinished, name))
    if CERTIFICATES.is_file():
        shutil.copy(CERTIFICATES, inside(unfinished, CERTIFICATES_INSIDE))
    unfinished.rename(root)


def copy(origin: Path, root: Path) -> None:
    """Makes `root` a copy of a folder that `bootstrap` made."""
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", "--reflink=auto", str(origin), str(root)], check=True)


def inside(root: Path, path: str) -> Path:
    """Returns the path on this machine of `path` in a fresh Debian."""
    return root / path.lstrip("/")


def settings() -> dict[str, str]:
    """Returns the environment variables for access to the registries."""
    passed_on = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    return passed_on | {"PIP_CERT": CERTIFICATES_INSIDE}


def command_in(root: Path, folder: str, words: Sequence[str], user: str = "root") -> list[str]:
    """Returns the command that runs `words` in `folder` of `root`; it ends with this process at the
    latest.
    """
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["--root", str(root), "--wd", folder]
    if user != "root":
        command += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*command, *words]


def locked_command_in(
    root: Path, folder: str, words: Sequence[str], user: str, *, writable: Sequence[str]
) -> list[str]:
    """Returns the command that runs `words` as a container with a read-only root file system does.

    `user` is UID:GID. Only the directories `writable` and a fresh /tmp can be written to; the process
    has no capability and gets none. `command_beside` runs another command in there.
    """
    user_id, _, group_id = user.partition(":")
    volumes = [f"mount --bind {inside(root, path)} {inside(root, path)}" for path in writable]
    locked = " && ".join(
        [
            f"mount --bind {root} {root}",
            # A bind mount of its own stays as it is when the one below it becomes read-only.
            *volumes,
            f"mount -o remount,bind,ro {root}",
            f"mount -t tmpfs tmpfs {inside(root, '/tmp')}",
            f"mount -t proc proc {inside(root, '/proc')}",
            f'exec /usr/sbin/chroot {root} /usr/bin/env -C {folder} "$@"',
        ]
    )
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", locked, "sh"]
    return [*command, *_unprivileged(user_id, group_id), *words]


def command_beside(process_id: int, user: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs `words` beside a process of `locked_command_in`."""
    user_id, _, group_id = user.partition(":")
    command = ["nsenter", f"--target={process_id}", "--mount", "--pid", "--root", "--wd"]
    return [*command, *_unprivileged(user_id, group_id), *words]


def _unprivileged(user_id: str, group_id: str) -> list[str]:
    command = ["setpriv", f"--reuid={user_id}", f"--regid={group_id}", "--clear-groups"]
    return [*command, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]


def run_in(root: Path, folder: str, words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs `words` in `folder` of `root` and returns their exit status."""
    return subprocess.run(
        command_in(root, folder, words), env=environment, stdin=subprocess.DEVNULL, check=False
    ).returncode
