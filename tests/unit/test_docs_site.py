"""The hooks that make a site of the documents; `make docs` runs them in MkDocs itself."""

from pathlib import Path

import pytest
from docs_site import BrokenLink, linked_files, loaded_from_elsewhere, site_markdown, site_name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns a repository with a few documents."""
    for name, text in {
        "ARCHITECTURE.md": "[the API](docs/api.md#http2) [list](LIST.md)\n",
        "LIST.md": "[file](deploy/rules.yml)\n",
        "deploy/README.md": "[back](../docs/api.md)\n",
        "deploy/rules.yml": "groups: []\n",
        "docs/api.md": "[web](https://example.org/x.md) [map](../ARCHITECTURE.md)\n",
        "docs/rules.md": "[rules](../deploy/) [own](#rules) ![tail](images/tail.png)\n",
        "docs/images/tail.png": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_site_has_the_files_that_pages_link_to(root: Path):
    assert linked_files(root, ["docs/api.md"]) == ["ARCHITECTURE.md", "LIST.md", "deploy/rules.yml"]
    assert linked_files(root, ["docs/rules.md"]) == ["deploy/README.md"]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "ARCHITECTURE.md",
            "[the API](api.md#http2) [list](repository/LIST.md)\n",
        ),
        ("LIST.md", "[file](deploy/rules.yml)\n"),
        ("deploy/README.md", "[back](api.md)\n"),
        ("docs/api.md", "[web](https://example.org/x.md) [map](architecture.md)\n"),
        ("docs/rules.md", "[rules](deploy.md) [own](#rules) ![tail](images/tail.png)\n"),
    ],
)
def test_links_lead_to_the_pages_of_the_site(page: str, text: str, root: Path):
    assert site_markdown(root, page, (root / page).read_text()) == text


@pytest.mark.parametrize("link", ["gone.md", "../gone.py", "../../etc/hosts", "images"])
def test_link_without_a_file_is_an_error(link: str, root: Path):
    with pytest.raises(BrokenLink, match=r"docs/api\.md: "):
        site_markdown(root, "docs/api.md", f"[x]({link})")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("```sh not-run: docker\nls\n```", "```sh\nls\n```"),
        ("```toml file=/etc/a.toml\nx = 1\n```", "```toml\nx = 1\n```"),
        ("```text output\nready\n```", '```text title="Output"\nready\n```'),
        ("```text\n[x](gone.md)\n- a\n```", "```text\n[x](gone.md)\n- a\n```"),
        ("**Serving**\n- one\n- two", "**Serving**\n\n- one\n- two"),
        ("Steps:\n1. one\n2. two", "Steps:\n\n1. one\n2. two"),
        ("- one\n  goes on\n- two", "- one\n  goes on\n- two"),
        ("# Heading\n- one", "# Heading\n- one"),
        ("| `a\\|b` | c\\|d |", "| `a|b` | c\\|d |"),
    ],
)
def test_markdown_of_github_is_adapted(text: str, shown: str, root: Path):
    assert site_markdown(root, "docs/api.md", text) == shown


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://unpkg.com/mermaid"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.googleapis.com/css">', 1),
        ("<img alt=x src=http://example.org/x.png>", 1),
        ('<a href="https://example.org">link</a> <img src="../images/x.png">', 0),
    ],
)
def test_page_that_loads_from_another_host_is_found(html: str, count: int):
    assert len(loaded_from_elsewhere(html)) == count


def test_files_outside_docs_have_short_names():
    assert site_name("ARCHITECTURE.md") == "architecture.md"
    assert site_name("docs/api.md") == "api.md"
