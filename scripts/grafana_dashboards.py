"""Writes the Grafana dashboards: deploy/grafana/{overview,swap,memory}.json.

    grafana_dashboards.py [--check]

With --check nothing is written, and the exit status is 1 if a file is not current. Each dashboard
has its module in `grafana/`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from grafana.memory import MEMORY
from grafana.model import Dashboard, dashboard_text
from grafana.overview import OVERVIEW
from grafana.swap import SWAP

DIRECTORY = Path(__file__).parent.parent / "deploy" / "grafana"
DASHBOARDS: Mapping[str, Dashboard] = {
    "overview.json": OVERVIEW,
    "swap.json": SWAP,
    "memory.json": MEMORY,
}
"""The dashboards by file name."""


def stale_files(directory: Path) -> list[str]:
    """Returns the names of the files that are not current."""
    return [
        name
        for name, dashboard in DASHBOARDS.items()
        if not (directory / name).is_file()
        or (directory / name).read_text() != dashboard_text(dashboard)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the files; see the module."""
    parser = argparse.ArgumentParser(description="Writes deploy/grafana/*.json.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    if parser.parse_args(arguments).check:
        stale = stale_files(DIRECTORY)
        for name in stale:
            print(f"{DIRECTORY / name} is not current: run scripts/grafana_dashboards.py")
        return 1 if stale else 0
    for name, dashboard in DASHBOARDS.items():
        (DIRECTORY / name).write_text(dashboard_text(dashboard))
    return 0


if __name__ == "__main__":
    sys.exit(main())
