"""Prints what the row analysis shows about the signatures of SavedModels.

    python -m tests.integration.row_census [--json] EXPORT...

Prints a line for each signature, and the share whose batching needs no trial. It runs in a process
of its own: the data plane cannot share one with TensorFlow's Python package.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from serving.core.model_settings import BatchingChoice, BatchingSettings
from serving.data_plane.plane import RuntimeOptions, native_module
from serving.reload.batching import Batching

ON = BatchingSettings(enabled=BatchingChoice.ON)


def verdicts_of(export: Path) -> dict[str, tuple[str, str]]:
    """Returns for each signature "independent", "unknown" or "mixes", and the reason."""
    plane = native_module()
    batching = Batching(plane, ON, reads_version_files=False)
    load = plane.SavedModelLoad("m", 1, str(export), ["serve"])
    steps = (load.read_graph, load.create_session, load.restore, load.run_init, load.analyze_rows)
    for step in (*steps, load.make_callables):
        step()
    servable = load.finish(None, None, batching.of_version("m", ON, export))
    verdicts = {state.signature: (state.rows, state.rows_reason) for state in servable.batching()}
    servable.destroy()
    return verdicts


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("exports", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    native_module().initialize(RuntimeOptions(intra_op_thread_count=1, inter_op_thread_count=1))
    all_verdicts = {str(export): verdicts_of(export) for export in options.exports}
    if options.json:
        print(json.dumps(all_verdicts))
        return 0
    counts: Counter[str] = Counter()
    for export, verdicts in all_verdicts.items():
        for signature, (rows, reason) in verdicts.items():
            counts[rows] += 1
            print(f"{export} {signature}: {rows}{': ' if reason else ''}{reason}")
    shown = counts["independent"] + counts["mixes"]
    print(f"{shown} of {counts.total()} signatures are decided without a trial: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
