"""README.md and docs/: their links, the marks of their examples, and each name in them."""

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import tomli
import yaml  # type: ignore[import-untyped]

from loadtest.__main__ import COMMANDS as LOADTEST_COMMANDS
from loadtest.__main__ import main as loadtest_main
from loadtest.commands.life import SCENARIOS
from serving.base.tensorflow_package import MINOR_VERSION
from serving.commands.cli import COMMANDS as MILLPOND_COMMANDS
from serving.commands.cli import main as millpond_main
from serving.config.batching_parameters_file import parse_batching_parameters
from serving.config.flags import FLAGS, parse_flags
from serving.config.model_config_file import parse_model_config
from serving.config.model_settings_file import parse_model_settings
from serving.monitoring.metric_families import FAMILIES
from tests.documents import (
    LANGUAGES,
    NOT_RUN,
    PAGES,
    README,
    REPOSITORY,
    Block,
    all_blocks,
    anchors_of,
    blocks_of,
    commands_of,
    has_bare_fence,
    inline_code,
    links_of,
    model_of,
    prose_of,
    simple_commands,
)
from warmup.__main__ import main as warmup_main

README_LINES_MAX = 150
MAKEFILE = (REPOSITORY / "Makefile").read_text()
# Names below these folders are those of the product.
SOURCES = (
    *("millpond", "serving", "fleet", "warmup", "loadtest", "native"),
    *("deploy", "scripts", "tests", "Dockerfile"),
)
SUFFIXES = {".py", ".pyi", ".h", ".cc", ".js", ".html", ".yml", ".json", ".sh", ".toml", ".txt", ""}
# Flags of other programs on the pages.
FOREIGN_FLAGS = {
    "pip": {"no-deps", "no-build-isolation", "wheel-dir", "group", "editable"},
    "docker": {"build-arg", "build-context", "target", "output", "tmpfs"},
    "tensorboard": {"logdir"},
    "prometheus": {"config.file"},
    "git": {"follow"},
    "ld": {"no-as-needed"},
}
# Names of other programs and libraries.
FOREIGN_NAMES = {"export_saved_model", "jit_compile", "native_serialization_platforms"}
# A file name that is not part of a web address.
MARKDOWN_FILE = re.compile(r"(?<![\w/.-])(?:\.\./|docs/|deploy/)*([\w-]+\.md)\b")
FLAG = re.compile(r"(?<![\w-])--(\w[\w.-]*)")
# A plainer word exists for each (docs/extending.md).
ODD_ENGLISH = (
    r"\bwhere (?:it|there|they|one|none|nothing|no|this|that)\b",
    r"\b(?:tell|tells|told|nobody|somebody)\b",
    r"\b(?:is|are) (?:no|none)\b",
    r"\bwho (?:asks|has|wants)\b",
)
# Programs of the examples that are not checked further.
OTHER_PROGRAMS = {
    *("git", "cd", "apt-get", "pip", "source", "cp", "mv", "mkdir", "rm", "cat", "grep", "curl"),
    *("python", "h2load", "tensorboard", "prometheus", "sed", "kill", "ls", "until", "docker"),
    *("haproxy", "helm", "kubectl", "ray", "systemctl"),
}
PAGE_IDS = [page.name for page in PAGES]


def ids(blocks: Sequence[Block]) -> list[str]:
    return [block.name for block in blocks]


def blocks(language: str) -> list[Block]:
    return [block for block in all_blocks() if block.language == language]


@cache
def sources() -> str:
    """Returns the text of the product and of its tests."""
    listed = subprocess.run(
        ["git", "ls-files", *SOURCES], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    paths = [REPOSITORY / name for name in listed if Path(name).suffix in SUFFIXES]
    own = {"test_documents.py", "documents.py"}
    return "\n".join(
        path.read_text(errors="replace")
        for path in paths
        if path.is_file() and path.name not in own
    )


def help_of(main, *arguments: str) -> str:
    """Returns the output of a command for --help, whether it returns or exits."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    return printed.getvalue()


@cache
def flags_of(program: str, command: str) -> frozenset[str]:
    """Returns the flags of a command of `millpond`, `loadtest` or `warmup`."""
    mains = {"millpond": millpond_main, "loadtest": loadtest_main, "warmup": warmup_main}
    if (program, command) == ("millpond", "serve"):
        return frozenset(FLAGS) | {"help"}
    return frozenset(FLAG.findall(help_of(mains[program], *command.split()))) | {"help"}


@cache
def all_flags() -> frozenset[str]:
    commands = [
        *(("millpond", command) for command in MILLPOND_COMMANDS),
        *(("millpond", command) for command in ("config plan", "config apply", "fleet status")),
        ("millpond", "fleet service-config"),
        *(("loadtest", command) for command in LOADTEST_COMMANDS),
        *(("loadtest", f"life {scenario}") for scenario in SCENARIOS),
        *(("warmup", command) for command in ("synthesize", "inspect", "check")),
    ]
    known = {flag for program, command in commands for flag in flags_of(program, command)}
    return frozenset(known.union(*FOREIGN_FLAGS.values()))


def test_readme_has_150_lines_at_most():
    assert len(README.read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_each_link_leads_to_a_page_and_a_heading(page: Path):
    for link in links_of(page):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{page.name}: {link}"


def test_badges_of_readme_are_true():
    found = re.findall(
        r"img\.shields\.io/badge/([^-]+)-((?:[^-]|--)+)-\w+\)", unquote(README.read_text())
    )
    shown = {label: value.replace("--", "-").replace("_", " ") for label, value in found}
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    least, below = re.findall(r"3\.(\d+)", project["requires-python"])
    platform = re.search(r"^WHEEL_PLATFORM \?= manylinux_2_(\d+)_x86_64", MAKEFILE, re.MULTILINE)
    assert platform is not None
    assert "Development Status :: 3 - Alpha" in project["classifiers"]
    assert shown == {
        "version": project["version"],
        "status": "alpha",
        "python": f"3.{least} to 3.{int(below) - 1}",
        "tensorflow": MINOR_VERSION,
        "platform": f"linux x86-64, glibc 2.{platform[1]}",
        "licence": project["license"],
    }


def test_changelog_begins_with_the_version():
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    newest = re.findall(r"^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert re.fullmatch(rf"{re.escape(project['version'])} - \d{{4}}-\d\d-\d\d", newest)


def test_index_links_each_page():
    index = REPOSITORY / "docs" / "index.md"
    listed = {link.partition("#")[0] for link in links_of(index)}
    assert {page.name for page in PAGES if page not in (README, index)} <= listed


def test_getting_started_is_ten_commands_with_output():
    page = REPOSITORY / "docs" / "getting-started.md"
    text = page.read_text()
    steps = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert steps == [str(number) for number in range(1, 11)]
    last_step_line = text[: text.index("## Without Keras")].count("\n")
    run = [b for b in blocks_of(page) if not b.reason_not_run and b.line < last_step_line]
    for command, output in zip(run[::2], run[1::2], strict=True):
        assert command.language in ("sh", "python"), command.name
        assert output.is_output, output.name
    # Step 10 asks again.
    assert len(run) == 2 * (10 + 1)


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_each_block_has_a_language_and_known_marks(page: Path):
    assert not has_bare_fence(page)
    for block in blocks_of(page):
        assert block.language in LANGUAGES, block.name
        is_known = (
            block.marks == ""
            or block.is_output
            or bool(block.file)
            or bool(block.answer_path)
            or block.reason_not_run in NOT_RUN
        )
        assert is_known, f"{block.name}: {block.marks}"


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_page_is_written_in_plain_english(page: Path):
    found = [
        match[0]
        for pattern in ODD_ENGLISH
        for match in re.finditer(pattern, re.sub(r"`[^`\n]*`", "", prose_of(page)))
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_each_flag_of_a_page_exists(page: Path):
    named = {flag for code in inline_code(page) for flag in FLAG.findall(code)}
    assert {flag.rstrip(".") for flag in named} - all_flags() == set()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_each_name_of_a_page_is_one_of_the_code(page: Path):
    named = {
        name
        for code in inline_code(page)
        if "/" not in code
        for name in re.findall(r"(?<![\w:.-])[a-z]\w*_\w+", code)
    }
    named -= FOREIGN_NAMES | {family.name for family in FAMILIES}
    assert sorted(name for name in named if name not in sources()) == []


def test_extending_page_names_real_identifiers():
    page = REPOSITORY / "docs" / "extending.md"
    named = {name for code in inline_code(page) for name in re.findall(r"\b[A-Z]\w*[a-z]\w*", code)}
    assert sorted(name for name in named if name not in sources()) == []


def shell_commands() -> list[tuple[Block, Sequence[str]]]:
    return [
        (block, words)
        for block in blocks("sh")
        for command in commands_of(block.text)
        for words in simple_commands(command)
        if words and words[0] not in ("done", "do", "fi", "then")
    ]


@pytest.mark.parametrize(
    ("block", "words"),
    shell_commands(),
    ids=[f"{block.name} {' '.join(words)[:40]}" for block, words in shell_commands()],
)
def test_each_command_of_a_page_is_one_that_exists(block: Block, words: Sequence[str]):
    del block
    words = [word for word in words if not re.fullmatch(r"\w+=.*", word)]
    if not words:
        return
    program = Path(words[0]).name
    if program == "docker":
        check_docker(words)
    elif program == "make":
        check_make(words)
    elif program == "xargs" and "--" in words:
        # `kubectl exec POD -- millpond …`
        own = list(words)[list(words).index("--") + 1 :]
        assert own[0] == "millpond"
        check_millpond(own[1:])
    elif program in ("millpond", "tensorflow_model_server"):
        check_millpond(["serve", *words[1:]] if program != "millpond" else words[1:])
    elif list(words[1:2]) == ["-m"]:
        check_module(words)
    else:
        assert program in OTHER_PROGRAMS


def check_millpond(words: Sequence[str]) -> None:
    command = words[0]
    if command == "--version":
        return
    assert command in MILLPOND_COMMANDS
    if command == "serve":
        parse_flags(words[1:])
        return
    known = flags_of("millpond", " ".join(words[:2]) if command in ("config", "fleet") else command)
    assert {flag for word in words for flag in FLAG.findall(word)} <= known


def check_module(words: Sequence[str]) -> None:
    module, *rest = words[2:]
    if module in ("loadtest", "warmup"):
        known = flags_of(module, " ".join(rest[:2]) if rest[0] == "life" else rest[0])
        assert {flag for word in rest for flag in FLAG.findall(word)} <= known
    else:
        assert (REPOSITORY / (module.replace(".", "/") + ".py")).exists() or module == "venv"


def check_docker(words: Sequence[str]) -> None:
    """Returns Millpond's own words after the name of its image: a command, or flags of `serve`."""
    if "millpond" not in words:
        return
    rest = words[list(words).index("millpond") + 1 :]
    if rest and rest[0] in MILLPOND_COMMANDS:
        check_millpond(rest)
    elif words[1] == "run":
        parse_flags(rest)


def check_make(words: Sequence[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
    assert {word for word in words[1:] if "=" not in word} <= set(targets)


@pytest.mark.parametrize("block", blocks("json"), ids=ids(blocks("json")))
def test_each_json_block_is_json(block: Block):
    json.loads(block.text)


@pytest.mark.parametrize("block", blocks("toml"), ids=ids(blocks("toml")))
def test_each_toml_block_is_a_settings_file(block: Block):
    names = re.findall(r"^\[models\.(\w+)", block.text, re.MULTILINE)
    parse_model_settings(block.text, block.name, names)


@pytest.mark.parametrize("block", blocks("yaml"), ids=ids(blocks("yaml")))
def test_each_yaml_block_is_yaml(block: Block):
    document = yaml.safe_load(block.text)
    for container in _containers(document):
        parse_flags(container.get("args", ()))


def _containers(document: object) -> list[dict[str, list[str]]]:
    """Returns the containers of a Kubernetes manifest, wherever they are in it."""
    if isinstance(document, dict):
        own = document.get("containers", [])
        return [*own, *(row for value in document.values() for row in _containers(value))]
    if isinstance(document, list):
        return [row for value in document for row in _containers(value)]
    return []


@pytest.mark.parametrize("block", blocks("textproto"), ids=ids(blocks("textproto")))
def test_each_textproto_block_is_a_config(block: Block):
    if block.page.name == "batching.md":
        parse_batching_parameters(block.text, block.name)
    elif not block.reason_not_run:
        parse_model_config(block.text, block.name)


@pytest.mark.parametrize("block", blocks("promql"), ids=ids(blocks("promql")))
def test_each_promql_block_uses_existing_metrics(block: Block):
    names = set(re.findall(r"\bserving_\w+", block.text))
    suffixes = ("", "_bucket", "_sum", "_count")
    assert names
    assert names <= {family.name + suffix for family in FAMILIES for suffix in suffixes}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_each_page_with_examples_has_a_server_for_them(page: Path):
    """A page with examples that call a server names its model, or starts the server itself."""
    texts = [block.text for block in blocks_of(page) if not block.reason_not_run]
    asks = [text for text in texts if re.search(r"localhost:8[56]\d\d|127\.0\.0\.1:85", text)]
    starts = [text for text in texts if "millpond serve" in text]
    assert not asks or model_of(page) or starts


def test_no_file_points_to_outside_document():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {Path(name).name for name in listed if name.endswith(".md")}
    wrong = [
        f"{name}: {found}"
        for name in listed
        if Path(name).suffix in {".py", ".pyi", ".h", ".cc", ".toml", ".md"}
        and (REPOSITORY / name).is_file()
        # Pages have other names on the site.
        and "docs_site" not in name
        for found in MARKDOWN_FILE.findall((REPOSITORY / name).read_text())
        if found not in names
    ]
    assert wrong == []
