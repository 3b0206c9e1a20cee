"""The pages of the documents, cut into their examples.

An example is a fenced block. Its first word is the language; marks follow:

    ```sh                    run, in the order of the page
    ```sh not-run: docker    not run here, for a reason of NOT_RUN; its flags are checked
    ```text output           the output of the block before it; `…` stands for any text
    ```json of=/v1/swaps     has no key that the server's answer to this path lacks
    ```toml file=/etc/a.toml written to that file before the blocks that follow

A page that needs a server before its first block names the model in a comment: <!-- examples: ctr -->.
A page whose blocks of Python need packages that the server's environment lacks names the environment
below build/ that has them: <!-- python: jax -->.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"
PAGES = (README, *sorted((REPOSITORY / "docs").glob("*.md")))

LANGUAGES = (
    "sh",
    "python",
    "json",
    "toml",
    "ini",
    "yaml",
    "textproto",
    "promql",
    "text",
    "mermaid",
)
NOT_RUN: Mapping[str, str] = {
    "cluster": "needs a Kubernetes cluster",
    "docker": "needs docker",
    "setup": "installs packages, or takes minutes",
    "load": "load tests, for a quiet machine",
    "network": "needs another machine",
    "fragment": "a part of a file",
}
"""Reasons not to run a block, as its mark spells them."""

_FENCE = re.compile(r"^```(\S+)(?: ([^\n]*))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_BARE_FENCE = re.compile(r"^(?:```|~~~) *$", re.MULTILINE)
_MODEL = re.compile(r"^<!-- examples: (\w+) -->$", re.MULTILINE)
_PYTHON = re.compile(r"^<!-- python: (\w+) -->$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line of its page on which its text begins."""

    page: Path
    line: int
    language: str
    marks: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def reason_not_run(self) -> str:
        """The reason that the block's mark names; "" if the block runs."""
        _, found, reason = self.marks.partition("not-run: ")
        return reason if found else ""

    @property
    def file(self) -> str:
        """The file with the block's text, or ""."""
        return self._value("file")

    @property
    def answer_path(self) -> str:
        """The path of the server with the block's answer, or ""."""
        return self._value("of")

    @property
    def is_output(self) -> bool:
        return self.language == "text" and self.marks == "output"

    def _value(self, key: str) -> str:
        found = re.fullmatch(rf"{key}=(\S+)", self.marks)
        return found[1] if found else ""


def blocks_of(page: Path) -> list[Block]:
    """Returns all fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start(3)) + 1, found[1], found[2] or "", found[3])
        for found in _FENCE.finditer(text)
    ]


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def model_of(page: Path) -> str:
    """Returns the model that a server of the page's examples has from the start, or ""."""
    found = _MODEL.search(page.read_text())
    return found[1] if found else ""


def python_of(page: Path) -> str:
    """Returns the folder below build/ of the environment for the page's blocks of Python, or ""."""
    found = _PYTHON.search(page.read_text())
    return found[1] if found else ""


def prose_of(page: Path) -> str:
    """Returns the page's text without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def has_bare_fence(page: Path) -> bool:
    """Returns True if a block has no language."""
    return _BARE_FENCE.search(prose_of(page)) is not None


def inline_code(page: Path) -> list[str]:
    """Returns the texts between single backticks, tables included."""
    return _CODE.findall(prose_of(page))


def links_of(page: Path) -> list[str]:
    return _LINK.findall(prose_of(page))


def anchors_of(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    plain = (re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def commands_of(text: str) -> list[str]:
    """Returns the commands of a shell block: one for each line, with continued lines joined and
    comments left out.

    A quoted text that spans lines, and the body of a loop, stay in one command.
    """
    commands: list[str] = []
    pending = ""
    for line in text.replace("\\\n", " ").splitlines():
        pending = f"{pending}\n{line}" if pending else line
        if _is_whole(pending):
            commands.append(pending)
            pending = ""
    return [command for command in commands if command.strip()]


def _is_whole(text: str) -> bool:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # an open quotation mark
        return False
    return words.count("do") == words.count("done") and words.count("if") == words.count("fi")


def words_of(command: str) -> list[str]:
    """Returns the words of one command, without comments; shell operators are words."""
    return shlex.split(command, comments=True)


def simple_commands(command: str) -> Iterator[Sequence[str]]:
    """Returns the parts of a command line between `&&`, `||`, `;` and `|`."""
    part: list[str] = []
    for word in words_of(command):
        if word in ("&&", "||", ";", "|", "&"):
            yield part
            part = []
        else:
            part.append(word)
    yield part
