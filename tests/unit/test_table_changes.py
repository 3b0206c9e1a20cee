import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millpond import delta_command
from millpond.table_changes import ManyRowsChanged, TableChange, check_changes, check_ratio
from serving.base.errors import FailedPrecondition, InvalidArgument

LARGE = TableChange("large", 1_000_000, 64, np.arange(1_000))


def change(changed_count: int, *, rows: int = 20_000, row_bytes: int = 64) -> TableChange:
    return TableChange("users", rows, row_bytes, np.arange(changed_count))


def export(*changes: TableChange) -> None:
    """Stands for `export_delta`, whose caller is warned."""
    check_changes(changes, 0.2)


def test_changes_of_most_of_a_table_warn_with_its_name() -> None:
    with pytest.warns(
        ManyRowsChanged, match=r"^users: 25\.0% of its rows .* 25% at most"
    ) as caught:
        export(LARGE, change(5_001))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "changes",
    [[LARGE, change(5_000)], [LARGE, change(15_999, rows=16_000)]],
    ids=["a quarter", "a small table"],
)
def test_changes_that_a_server_can_undo(changes: list[TableChange]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(*changes)


def test_changes_of_too_many_rows_are_refused() -> None:
    with pytest.raises(
        FailedPrecondition, match=r"5,001 of 20,000 rows .*users 25\.0%.* 20\.0% may"
    ):
        export(change(5_001))


@pytest.mark.parametrize("ratio", [20, -0.1, float("nan")])
def test_the_limit_is_a_share(ratio: float) -> None:
    with pytest.raises(InvalidArgument, match="give a share from 0 to 1"):
        check_ratio(ratio)


def importer(*changes: TableChange) -> Callable[..., Any]:
    def delta_of_versions(old: Path, new: Path, out: Path, **how: Any) -> Any:
        warnings.warn("TensorFlow's greeting", stacklevel=1)
        export(*changes)
        return SimpleNamespace(path=out, changed_rows={}, changed_ratio=0.1, written_bytes=1)

    return delta_of_versions


def test_delta_command_prints_the_warning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(delta_command, "_importer", lambda: importer(LARGE, change(5_001)))
    assert delta_command.run(["1", "2", str(tmp_path / "3")]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("millpond delta: warning: users: 25.0% of its rows have changed")
