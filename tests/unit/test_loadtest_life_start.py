from pathlib import Path

from rich.console import Console

from loadtest.commands.start import PageRead, Spent, Started, stage_totals, table_of
from loadtest.drive.small_model import config_text
from serving.config.model_config_file import parse_model_config

STAT = "17 (python (3)) S " + " ".join(str(number) for number in range(4, 53))


def test_spent_is_read_behind_a_name_with_parentheses() -> None:
    # Fields 14, 15 and 20 of proc(5).
    assert Spent.parse(STAT, 0.01) == Spent(0.14, 0.15, 20)


def test_stage_totals_add_up_the_loads_of_all_models() -> None:
    loads = [
        {"event": "version_available", "model": "a", "restore_seconds": 0.25, "load_seconds": 1.0},
        {"event": "version_available", "model": "b", "restore_seconds": 0.5, "load_seconds": 1.0},
        {"event": "version_unloaded", "model": "b", "destroy_seconds": 9.0},
    ]
    assert stage_totals(loads) == {"load": 2.0, "restore": 0.75}


def test_config_text_has_each_model_with_its_base_path() -> None:
    base_paths = {"a": Path("/models/a"), "b": Path("/models/b")}
    models = parse_model_config(config_text(base_paths), "here")
    assert [(model.name, model.base_path) for model in models] == [
        ("a", "/models/a"),
        ("b", "/models/b"),
    ]


def test_table_has_a_column_for_each_start() -> None:
    starts = [
        Started(
            http_seconds=1.5,
            ready_seconds=seconds,
            spent=Spent(9.4, 1.0, 60),
            rest_ratio=0.02,
            resident_bytes=960_000_000,
            pages={"/metrics": PageRead(2_800_000, 0.7, 0.5)},
            stage_seconds={"load": 9.44},
            stop_seconds=1.25,
        )
        for seconds in (7.7, 8.1)
    ]
    console = Console(width=100, record=True)
    console.print(table_of(200, starts))
    text = console.export_text()
    assert "200 models" in text
    ready = next(line for line in text.splitlines() if "seconds until ready" in line)
    assert "7.7" in ready
    assert "8.1" in ready
    assert "960" in next(line for line in text.splitlines() if "resident MB" in line)
    assert "2,800" in next(line for line in text.splitlines() if "kB of /metrics" in line)
