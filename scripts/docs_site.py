"""Hooks of MkDocs: they make a site of the same Markdown files that GitHub shows.

- A page may link to a file outside docs/, as `../ARCHITECTURE.md`. The site gets that file, and the link
  leads there. A link without a file is an error.
- Blocks have marks for the test of their examples (tests/documents.py). The site leaves the marks out.
- Python-Markdown needs an empty line before a list, and shows the backslash of `a\\|b` in a table.
- A page that would load something from another host is an error: the site works offline.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = PurePosixPath("docs")

# The names on the site of files outside docs/. All other such files lie below repository/.
NAMES: Mapping[str, str] = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/README.md": "deploy.md",
}

_FENCE = re.compile(r"^(```|~~~)(\w*)[^\n]*\n.*?^\1 *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_LIST_AFTER_TEXT = re.compile(
    r"^((?!\s*(?:[-*]|\d+\.) |[#|>]| {2}).+\n)(?=(?:[-*]|\d+\.) )", re.MULTILINE
)
_CODE_IN_TABLE = re.compile(r"`[^`\n]*`")
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\"'>\s]+"
)


class BrokenLink(Exception):
    """Raised for a link to a file that does not exist."""


def linked_files(root: Path, pages: Iterable[str]) -> list[str]:
    """The files outside docs/ that the pages link to, and those that these link to.

    `pages` and the result are paths from `root`. Raises BrokenLink.
    """
    found: list[str] = []
    queue = list(pages)
    while queue:
        page = queue.pop()
        for target in _targets(root, page):
            is_outside = DOCS not in PurePosixPath(target).parents
            if is_outside and target not in found:
                found.append(target)
                queue += [target] if target.endswith(".md") else []
    return sorted(found)


def site_name(path: str) -> str:
    """The name on the site of a file of the repository."""
    pure = PurePosixPath(path)
    if DOCS in pure.parents:
        return str(pure.relative_to(DOCS))
    return NAMES.get(path, f"repository/{path}")


def site_markdown(root: Path, page: str, text: str) -> str:
    """The text of a page of the repository as MkDocs needs it. Raises BrokenLink."""
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_prose(root, page, text[end : fence.start()]), _block(fence)]
        end = fence.end()
    return "".join([*parts, _prose(root, page, text[end:])])


def _block(fence: re.Match[str]) -> str:
    first, newline, rest = fence[0].partition("\n")
    title = ' title="Output"' if first.endswith("text output") else ""
    return f"{fence[1]}{fence[2]}{title}{newline}{rest}"


def _prose(root: Path, page: str, text: str) -> str:
    text = _LINK.sub(lambda link: _site_link(root, page, link), text)
    text = _LIST_AFTER_TEXT.sub(r"\1\n", text)
    lines = [
        _CODE_IN_TABLE.sub(lambda code: code[0].replace(r"\|", "|"), line)
        if line.startswith("|")
        else line
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def _site_link(root: Path, page: str, link: re.Match[str]) -> str:
    target = _target(root, page, link[2])
    if target is None:
        return link[0]
    path = os.path.relpath(site_name(target), PurePosixPath(site_name(page)).parent)
    return f"{link[1]}{path}{link[3] or ''}{link[4]}"


def _targets(root: Path, page: str) -> list[str]:
    prose = _FENCE.sub("", (root / page).read_text())
    targets = (_target(root, page, link[2]) for link in _LINK.finditer(prose))
    return [target for target in targets if target is not None]


def _target(root: Path, page: str, link: str) -> str | None:
    """The file that a link names, from `root`; None for an address of the web."""
    if re.match(r"[a-z]+:", link):
        return None
    path = os.path.normpath(PurePosixPath(page).parent / unquote(link))
    if (root / path).is_dir():
        path = f"{path}/README.md"
    if path.startswith("..") or not (root / path).is_file():
        raise BrokenLink(f"{page}: {link} leads to no file")
    return path


def loaded_from_elsewhere(html: str) -> list[str]:
    """The elements of a page that make a browser load something from another host."""
    return _LOADED.findall(html)


# --- Called by MkDocs ---------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Adds the files outside docs/."""
    from mkdocs.structure.files import File

    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in linked_files(REPOSITORY, pages):
        content = (REPOSITORY / path).read_bytes()
        files.append(File.generated(config, site_name(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    sources = {name: path for path, name in NAMES.items()}
    name = page.file.src_uri
    path = sources.get(name) or name.removeprefix("repository/")
    is_own = name not in sources and path == name
    return site_markdown(REPOSITORY, f"docs/{name}" if is_own else path, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    if loaded := loaded_from_elsewhere(output):
        raise ValueError(f"{page.file.src_uri} loads from another host: {', '.join(loaded)}")
    return output
