from rich.console import Console

from loadtest.commands.deltas import LoadedVersion, table_of
from loadtest.measure.version_loads import VersionLoad, load_of


def swap(**changes: object) -> dict[str, object]:
    return {
        "load_started_at": 10.0,
        "published_at": 10.5,
        "stages": [
            {"name": "restore", "task": "load", "seconds": 0.25},
            {"name": "destroy", "task": "unload", "seconds": 9.0},
        ],
        "parameter_bytes": 1_000,
        "restored_bytes": 112,
        "kept_bytes": 888,
        "figures": {"copied_bytes": 444},
        "delta_restored_in_full": "",
        **changes,
    }


def test_load_of_a_swap_has_the_stages_of_the_load() -> None:
    assert load_of(swap()) == VersionLoad(
        load_seconds=0.5,
        stage_seconds={"restore": 0.25},
        restored_bytes=112,
        kept_bytes=888,
        copied_bytes=444,
        restored_in_full="",
    )


def test_load_of_a_version_without_tables_reads_all() -> None:
    load = load_of(swap(restored_bytes=None, kept_bytes=None, figures={}))
    assert (load.restored_bytes, load.kept_bytes, load.copied_bytes) == (1_000, 0, 0)


def test_table_has_a_column_for_each_delta() -> None:
    loaded = [
        LoadedVersion(
            version=version,
            changed_row_count=156_250,
            written_bytes=11_300_000,
            export_seconds=0.5,
            available_seconds=0.75,
            resident_bytes=2_100_000_000,
            load=load_of(swap(delta_restored_in_full=reason)),
        )
        for version, reason in ((2, "held"), (3, ""))
    ]
    console = Console(width=100, record=True)
    console.print(table_of(1_000_000_000, loaded))
    lines = console.export_text().splitlines()
    assert "1,000 MB of tables" in lines[1]

    def row(name: str) -> list[str]:
        (line,) = (line for line in lines if name in line)
        return [cell.strip() for cell in line.strip("│ ").split("│")[1:]]

    assert row("rows changed") == ["156,250", "156,250"]
    assert row("in full, because") == ["held", "-"]
    assert row("ms of restore") == ["250.0", "250.0"]
