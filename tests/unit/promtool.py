"""promtool, which Debian's package of Prometheus contains."""

import shutil
import subprocess


def complaints(page: str) -> list[str]:
    """Returns the output of `promtool check metrics` for a page of metrics; fails if it cannot read it."""
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: readable, with findings of the linter.
    return (done.stdout + done.stderr).splitlines()


def tool(name: str) -> str:
    """Returns the path of one of the package's programs."""
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: run `scripts/install_packages.sh test`"
    return path
