import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "fetch_models.py"


def test_fetch_models_help_fetches_nothing(tmp_path: Path):
    """It took --help for the directory."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DIRECTORY/NAME/1" in ended.stdout
    assert list(tmp_path.iterdir()) == []
