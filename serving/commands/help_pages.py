"""`millpond help`: prints a page of the documents, or the help of a command or a flag.

A wheel has a copy of docs/ in the package `serving`. A clone of the repository has docs/ itself.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from serving.base.errors import NotFound
from serving.base.name_text import listed
from serving.config.flags import FLAGS, flag_text, gone_flag_message

TOPICS = "topics"
_SERVING = Path(__file__).parents[1]
_DIRECTORIES = (_SERVING / "docs", _SERVING.parent / "docs")
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)
# Matches the marks after the language of a code block, which only the test of the examples needs.
_MARKS = re.compile(r"^(```\w+) .*$", re.MULTILINE)


def run(arguments: Sequence[str]) -> int:
    """Prints the page, or the list of topics. Raises NotFound for any other topic."""
    # The topic is not parsed by argparse, because argparse would refuse the name of a flag.
    topic, *rest = arguments or [TOPICS]
    if rest or topic in ("-h", "--help"):
        make_parser().parse_args(arguments)
    if topic.startswith("--"):
        print(_flag_help(topic.removeprefix("--").partition("=")[0]))
        return 0
    from serving.commands.cli import COMMANDS

    if topic in COMMANDS:
        return COMMANDS[topic].run(["--help"])
    pages = find_pages()
    if topic == TOPICS:
        print("\n".join(f"{name:<18}{title_of(path)}" for name, path in pages.items()))
        return 0
    name = topic.lower().replace("_", "-")
    if name not in pages:
        raise NotFound(_unknown(topic, [*pages, *COMMANDS]))
    print_page(pages[name].read_text(), sys.stdout)
    return 0


def find_pages(directories: Sequence[Path] = _DIRECTORIES) -> Mapping[str, Path]:
    """The files of the pages by topic, like `getting-started`.

    Raises NotFound if this installation has no pages.
    """
    for directory in directories:
        if found := sorted(directory.glob("*.md")):
            return {path.stem.replace("_", "-"): path for path in found if path.stem != "index"}
    raise NotFound("this installation has no pages: read docs/ of the source archive")


def title_of(path: Path) -> str:
    """The first heading of a page."""
    return path.read_text().partition("\n")[0].lstrip("# ")


def print_page(text: str, stream: TextIO) -> None:
    """Prints a page: formatted on a terminal, and elsewhere as Markdown without comments and marks for tests."""
    plain = _MARKS.sub(r"\1", _COMMENT.sub("", text))
    if not stream.isatty():
        print(plain, end="", file=stream)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(file=stream).print(Markdown(plain, hyperlinks=False))


def _flag_help(name: str) -> str:
    if message := gone_flag_message(name):
        raise NotFound(message)
    if name not in FLAGS:
        raise NotFound(_unknown(f"--{name}", [f"--{flag}" for flag in FLAGS]))
    return flag_text(FLAGS[name])


def _unknown(topic: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(topic, known, n=3)
    remedy = f"did you mean {listed(close, ' or ')}?" if close else "see millpond help topics"
    return f"{topic!r} is neither a page nor a command nor a flag; {remedy}"


def make_parser() -> argparse.ArgumentParser:
    from serving.commands.cli import COMMANDS

    parser = argparse.ArgumentParser(
        prog="millpond help",
        description="Print a page of the documents, or the help of a command or of a flag of serve.",
        allow_abbrev=False,
    )
    try:
        pages = list(find_pages())
    except NotFound:
        pages = []
    parser.add_argument(
        "topic",
        nargs="?",
        choices=[TOPICS, *pages, *COMMANDS],
        metavar="TOPIC",
        help="a page, a command, --FLAG, or `topics`, the list of pages (default)",
    )
    return parser
