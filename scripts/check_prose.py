"""Checks how comments, docstrings and test names read, and prints a table of their patterns.

Usage: check_prose.py [--table] [FOLDER...]

Without --table it fails for each comment or docstring that opens with a word of OPENINGS, for each
docstring that opens with a word of DOCSTRING_OPENINGS or with an owner alone ("asyncio's."), for each
comment or docstring that uses "where" for a condition, for each sentence whose subject is "those",
"one", "the others" or "so many", and for each test name of more than TEST_NAME_LENGTH_MAX characters.
It also fails if more than RETURNS_SHARE_MAX of all comments in Python open with "Returns", tests left out.
With --table it prints how many of 1,000 comments and docstrings match each pattern of PATTERNS; the
limits are what well-kept code bases have.
A C++ comment is a run of adjacent // lines. A Python comment is a run of # lines or a docstring. The
string below a constant or a type alias is its docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
FOLDERS = ("millpond", "serving", "fleet", "warmup", "loadtest", "scripts", "native", "tests")

# A longer name retells the test. The limit makes a name state one promise.
TEST_NAME_LENGTH_MAX = 50

PYTHON_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
CPP_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\)", re.MULTILINE)

LEFT_OUT: tuple[str, ...] = ()

OPENINGS = re.compile(r"^(What|Of|Those|Who|Whether|Whatever)\b")

# Comments may open with these words, like "By name, because a map has no order". A docstring may open
# with "How long", the usual start for a duration.
DOCSTRING_OPENINGS = re.compile(r"^(How(?! long)|When|By|On|From|For|Kept|Between)\b")

OWNER_ALONE = re.compile(r"^([A-Za-z]+(?:'s|s'))[.:]")
WHERE = re.compile(
    r"(?<!place )\bwhere (it|there|they|one|none|nothing|no|this|that|a|an|the|its|all|every|these|too"
    r"|nobody|possible|something|requests|everything)\b",
    re.IGNORECASE,
)

# A sentence whose subject stands for a noun that the reader has to look for. "One of the calls" and
# "One call" name the noun.
SUBJECT = re.compile(
    r"(?:^|(?<=[.;!?] )|(?<=[.;!?]\) ))"
    r"(Those|those|The others|the others|So many|so many"
    r"|[Oo]ne (?:is|was|has|had|may|must|can|cannot|will|would|should|does|that|which|without|with|for))\b"
)

# A docstring says the effect first, or the value as a noun. A few read best with "Returns".
RETURNS = re.compile(r"^Returns?\b")
RETURNS_SHARE_MAX = 0.05
# A share of fewer comments says nothing.
SHARED_COUNT_MIN = 100

# Pattern and the most (or, for "if", the fewest) that a plain text has of it in 1,000.
PATTERNS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "contains if": (r"\bif\b", "at least 78"),
        "where = if/when": (WHERE.pattern, "at most 4"),
        "starts What": (r"^What\b", "at most 1"),
        "starts Of": (r"^Of\b", "at most 1"),
        "starts Those": (r"^Those\b", "at most 1"),
        "starts Whether": (r"^Whether\b", "at most 7"),
        "for who / who asks": (r"\bfor who\b|\bwho (asks|has|wants)\b", "at most 1"),
        "tell/tells/told": (r"\b(tell|tells|told)\b", "at most 5"),
        "nobody/somebody": (r"\b(nobody|somebody)\b", "at most 1"),
        "is no X / are none": (r"\b(is|are) (no|none)\b", "at most 12"),
        "Returns/Return": (r"\bReturns?\b", "at most 100"),
    }
)


class Comment(NamedTuple):
    path: Path
    line: int
    text: str
    is_docstring: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text[:90]}"


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each string that is a statement of its own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstring = node.value.value
            if isinstance(docstring, str) and docstring:
                yield node.lineno, docstring


def runs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins the texts of adjacent lines; yields each run with its first line's number."""
    first, last, words = 0, -1, list[str]()
    for number, text in lines:
        if number != last + 1 and words:
            yield first, " ".join(words)
            words = []
        if not words:
            first = number
        words.append(text)
        last = number
    if words:
        yield first, " ".join(words)


def python_lines(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def cpp_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"\s*///?\s?(.*)", line) or re.search(r"\s// (.*)$", line)
        if match:
            yield number, match[1]


def comments_in(path: Path) -> Iterator[Comment]:
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".pyi"):
        found = [(*docstring, True) for docstring in docstrings(text)]
        found += [(*comment, False) for comment in runs(python_lines(text))]
    else:
        found = [(*comment, False) for comment in runs(cpp_lines(text))]
    for line, comment, is_docstring in sorted(found):
        joined = " ".join(comment.split())
        if len(joined) > 3:
            yield Comment(path, line, joined, is_docstring)


def test_names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each test of pytest or GoogleTest in the file."""
    text = path.read_text(encoding="utf-8")
    pattern = PYTHON_TEST if path.suffix == ".py" else CPP_TEST
    for match in pattern.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


def sources_below(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".pyi", ".cc", ".h", ".cpp", ".hpp"):
                yield path


def comments_below(folders: Sequence[Path]) -> Iterator[Comment]:
    for path in sources_below(folders):
        yield from comments_in(path)


def problem_with(comment: Comment) -> str | None:
    """The rule that the comment breaks, or None."""
    patterns = (OPENINGS, DOCSTRING_OPENINGS, OWNER_ALONE) if comment.is_docstring else (OPENINGS,)
    for pattern in patterns:
        opening = pattern.match(comment.text)
        if opening:
            return f"opens with '{opening[1]}': start with a verb, or a noun and its article"
    where = WHERE.search(comment.text)
    if where:
        return f"'{where[0]}' is a condition: write 'if' or 'when'"
    subject = SUBJECT.search(comment.text)
    if subject:
        return f"'{subject[1]}' is the subject of a sentence: repeat the noun"
    return None


def problems_of_test_names(folders: Sequence[Path]) -> Iterator[str]:
    for path in sources_below(folders):
        for line, name in test_names_in(path):
            if len(name) > TEST_NAME_LENGTH_MAX:
                yield (
                    f"{path}:{line}: {name}: the test name has {len(name)} characters:"
                    f" state its promise in at most {TEST_NAME_LENGTH_MAX}"
                )


def problems_of_comments(comments: Sequence[Comment]) -> Iterator[str]:
    for comment in comments:
        problem = problem_with(comment)
        if problem is not None:
            yield f"{comment}: {problem}"


def problems_of_returns(comments: Sequence[Comment]) -> Iterator[str]:
    product = [c for c in comments if c.path.suffix == ".py" and "tests" not in c.path.parts]
    found = [comment for comment in product if RETURNS.match(comment.text)]
    if len(product) >= SHARED_COUNT_MIN and len(found) > RETURNS_SHARE_MAX * len(product):
        yield (
            f"{found[-1]}: {len(found)} of {len(product)} comments open with 'Returns', more than"
            f" {RETURNS_SHARE_MAX:.0%}: start with the effect, or with the value as a noun"
        )


def is_checked(path: Path) -> bool:
    name = path.resolve().as_posix() + ("/" if path.is_dir() else "")
    return not any(f"/{left_out}" in name for left_out in LEFT_OUT)


def print_table(comments: Sequence[Comment]) -> None:
    print(f"{len(comments)} comments and docstrings; of 1,000 of them")
    for name, (pattern, limit) in PATTERNS.items():
        count = sum(bool(re.search(pattern, comment.text)) for comment in comments)
        print(f"{name:20s} {1000 * count / max(1, len(comments)):7.1f}   ({limit})")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Checks how comments and test names read.")
    parser.add_argument("--table", action="store_true", help="print how often each pattern stands")
    parser.add_argument("folders", nargs="*", type=Path)
    parsed = parser.parse_args(arguments)
    folders = parsed.folders or [REPOSITORY / name for name in FOLDERS]
    comments = [c for c in comments_below(folders) if is_checked(c.path)]
    if parsed.table:
        print_table(comments)
        return 0
    problems = [
        *problems_of_comments(comments),
        *problems_of_returns(comments),
        *problems_of_test_names(folders),
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
