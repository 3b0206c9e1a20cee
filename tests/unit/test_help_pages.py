import io
from pathlib import Path

import pytest

from serving.base.errors import NotFound
from serving.commands.cli import main
from serving.commands.help_pages import find_pages, print_page
from tests.documents import PAGES, README
from tests.unit.fresh_python import run_python

PAGE = """# Title

<!-- examples: ctr -->

A [link](memory.md).

```sh not-run: setup
make install
```
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_topics_are_the_pages_of_the_documents(capsys: pytest.CaptureFixture[str]):
    assert main(["help", "topics"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    pages = {page.stem.replace("_", "-") for page in PAGES if page != README} - {"index"}
    assert set(listed) == pages
    assert "getting-started" in listed


@pytest.mark.parametrize("topic", ["object-storage", "object_storage"])
def test_help_prints_a_page(topic: str, capsys: pytest.CaptureFixture[str]):
    assert main(["help", topic]) == 0
    assert capsys.readouterr().out.startswith("# Object storage\n")


def test_page_is_printed_without_marks_of_its_test():
    out = io.StringIO()
    print_page(PAGE, out)
    assert out.getvalue() == "# Title\n\nA [link](memory.md).\n\n```sh\nmake install\n```\n"


def test_page_on_a_terminal_is_formatted():
    terminal = Terminal()
    print_page(PAGE, terminal)
    assert "Title" in terminal.getvalue()
    assert "```" not in terminal.getvalue()


def test_help_of_a_command_is_its_help(capsys: pytest.CaptureFixture[str]):
    assert main(["help", "status"]) == 0
    assert "usage: millpond status" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--allocator", "--allocator=jemalloc|glibc\n        malloc of the process"),
        ("--allocator=glibc", "(default jemalloc)"),
        ("--prefer_tflite_model", "refused: Millpond serves SavedModels only"),
    ],
)
def test_help_of_a_flag_is_its_part(flag: str, text: str, capsys: pytest.CaptureFixture[str]):
    assert main(["help", flag]) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("rolout", "did you mean rollout"),
        ("--alocator", "--allocator"),
        ("--grpc_completion_queue_count", "no longer a flag: use --grpc_request_threads"),
        ("?", "millpond help topics"),
    ],
)
def test_unknown_topic_exits_one_with_the_nearest(
    topic: str, remedy: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["help", topic]) == 1
    assert remedy in capsys.readouterr().err


def test_two_topics_are_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["help", "memory", "nonsense"]) == 2
    assert "usage: millpond help" in capsys.readouterr().err


def test_pages_beside_the_package_come_first(tmp_path: Path):
    for name in ("wheel", "clone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").write_text(f"# {name}\n")
    assert list(find_pages([tmp_path / "wheel", tmp_path / "clone"])) == ["wheel"]
    assert list(find_pages([tmp_path / "none", tmp_path / "clone"])) == ["clone"]
    with pytest.raises(NotFound, match="source archive"):
        find_pages([tmp_path / "none"])


def test_help_imports_nothing_heavy():
    run_python(
        "import sys\n"
        "from serving.commands.cli import main\n"
        "main(['help', 'memory'])\n"
        "sys.exit(str({'tensorflow', 'numpy', 'grpc'} & set(sys.modules) or '') or 0)"
    )
