"""Writes the Grafana dashboards: deploy/grafana/{overview,swap,memory}.json.

    grafana_dashboards.py [--check]

With --check nothing is written, and the exit status is 1 where a file is not what would be written.
What a dashboard shows is in `grafana/`, one module each.
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
"""By file name."""


def stale_files(directory: Path) -> list[str]:
    """The names of those that are not what this script would write."""
    return [
        name
        for name, dashboard in DASHBOARDS.items()
        if not (directory / name).is_file()
        or (directory / name).read_text() != dashboard_text(dashboard)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks; see the module."""
    parser = argparse.ArgumentParser(description="Writes deploy/grafana/*.json.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where stale")
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
