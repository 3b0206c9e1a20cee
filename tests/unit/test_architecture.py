"""ARCHITECTURE.md: its paths, and its table of threads against the headers of native/rpc/."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
HEADERS = {path.name: path.read_text() for path in (REPOSITORY / "native" / "rpc").glob("*.h")}

# A comment, and the class or struct below it. Both stand at the left edge.
CLASS = re.compile(r"((?:^//.*\n)*)^(?:class|struct) (\w+)[^;]*?\{", re.MULTILINE)
THREAD = re.compile(r"Thread: ([^.]*)")
# The object belongs to the object that holds it, or to one thread.
OWNED = ("one", "as ", "its owner")


def classes() -> dict[str, str]:
    """The comment of each class of native/rpc/, by the name of the class."""
    return {
        match[2]: " ".join(line.lstrip("/ ") for line in match[1].splitlines())
        for text in HEADERS.values()
        for match in CLASS.finditer(text)
    }


def table() -> dict[tuple[str, ...], str]:
    """The rows of the table of threads: their classes, and the rest of the row."""
    below = TEXT.partition("## Which thread may call what")[2].partition("\n## ")[0]
    rows = [line.split("|", 2) for line in below.splitlines() if line.startswith("| `")]
    return {tuple(re.findall(r"`(\w+)`", row[1])): row[2] for row in rows}


def test_architecture_fits_two_screens() -> None:
    assert len(TEXT.splitlines()) <= 115


def test_architecture_names_files_that_exist() -> None:
    folders = ("native", "serving", "fleet", "warmup", "loadtest", "tests", "scripts", "docs")
    names = {path.name for folder in folders for path in (REPOSITORY / folder).rglob("*")}
    paths = re.findall(r"`([\w./-]+\.(?:py|h|cc|md|txt)|[\w-]+(?:/[\w.-]+)+/?)`", TEXT)
    assert [
        path for path in paths if not (REPOSITORY / path).exists() and Path(path).name not in names
    ] == []


def test_thread_table_has_each_shared_class() -> None:
    listed = {name for names in table() for name in names}
    assert listed - classes().keys() == set()
    shared = {
        name
        for name, comment in classes().items()
        if (thread := THREAD.search(comment)) and not thread[1].startswith(OWNED)
    }
    assert shared - listed == set()


def test_thread_table_names_functions_of_its_classes() -> None:
    for names, calls in table().items():
        sources = "".join(
            text for text in HEADERS.values() if any(f" {name} " in text for name in names)
        )
        called = re.findall(r"`(\w+)`", calls)
        assert [call for call in called if not re.search(rf"\b{call}\b", sources)] == [], names


def test_header_of_the_wire_says_which_thread_may_call() -> None:
    silent = {
        name
        for name, text in HEADERS.items()
        if re.search(r"^class \w+[^;]*?\{", text, re.MULTILINE)
        and not re.search(r"[Tt]hread(:|-safe| of all three:)|[Tt]he call's thread", text)
    }
    assert silent == set()
