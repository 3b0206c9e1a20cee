"""promtool, which comes with Debian's Prometheus."""

import shutil
import subprocess


def complaints(page: str) -> list[str]:
    """What `promtool check metrics` says of a page of metrics; an assertion where it cannot read it."""
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: readable, and lint found something.
    return (done.stdout + done.stderr).splitlines()


def tool(name: str) -> str:
    """The path of one of the package's programs."""
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: run `scripts/install_packages.sh test`"
    return path
