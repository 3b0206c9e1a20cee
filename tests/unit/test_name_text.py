import os
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.base.name_text import (
    FILE_NAME_BYTES_MAX,
    encodable,
    fault_of_name,
    file_name,
    listed,
    printable,
)

# Any text, halves of surrogate pairs included, and often what makes up paths.
NAMES = st.one_of(
    st.text(st.characters()), st.text("./~%-a\\\0é", max_size=8), st.text("a/é", min_size=60)
)


@given(NAMES)
@example("../../x")
@example("/abs")
@example(".")
@example("..")
@example("")
def test_any_name_makes_one_directory_entry(name: str):
    entry = file_name(name)
    assert entry
    assert set(entry) <= set(string.ascii_letters + string.digits + "._-%")
    assert not entry.startswith(".")
    assert len(entry) <= FILE_NAME_BYTES_MAX
    assert Path(os.path.normpath(Path("/d") / entry)).parent == Path("/d")


@given(NAMES, NAMES)
@example("a/b", "a%2Fb")
@example(".a", "%2Ea")
@example("é" * 99 + "a", "é" * 99 + "b")
def test_distinct_names_have_distinct_files(first: str, second: str):
    assert (file_name(first) == file_name(second)) is (first == second)


@given(NAMES)
def test_shortened_names_have_different_files(name: str):
    assert file_name(file_name("x" * 999)) != file_name("x" * 999)
    assert file_name(name) != file_name("x" * 999) or name == "x" * 999


def test_common_names_are_their_own_file_names():
    assert file_name("ctr_v2-eu.west") == "ctr_v2-eu.west"


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "a\x00", "\x7f", "\x9b", "\udcff"])
def test_name_with_a_control_character_is_refused(name: str):
    fault = fault_of_name(name)
    assert "control character" in fault
    assert fault.isprintable()


@pytest.mark.parametrize("name", ["ctr", "../../x", "/abs", "a b", "模型", "<b>&", 'quo"te'])
def test_other_names_follow_tensorflow_serving(name: str):
    assert fault_of_name(name) == ""


@given(st.text(st.characters()))
def test_printable_text_is_one_line_without_controls(text: str):
    assert printable(text).isprintable()


@given(st.text(st.characters(exclude_categories=())))
def test_encodable_text_can_be_encoded(text: str):
    shown = encodable(text)
    shown.encode()
    assert encodable(shown) == shown
    assert shown == text or "\\" in shown


def test_encodable_text_shows_the_bytes_of_a_path():
    assert encodable("/modèle/caf\udce9") == "/modèle/caf\\xe9"
    assert encodable("half \ud800") == "half \\ud800"


def test_printable_text_stays_as_it_is():
    assert printable("ctr [7] 模型") == "ctr [7] 模型"
    assert printable("a\x1b[31m\u202eb") == "a\\x1b[31m\\u202eb"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "none"),
        (1, "0"),
        (5, "0, 1, 2, 3, 4"),
        (6, "0, 1, 2, 3, 4 and 1 more"),
        (3_000, "0, 1, 2, 3, 4 and 2995 more"),
    ],
)
def test_long_lists_are_cut_and_counted(count: int, text: str):
    assert listed(map(str, range(count))) == text
