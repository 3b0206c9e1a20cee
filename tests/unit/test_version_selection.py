import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidConfig
from serving.core.version_selection import (
    All,
    Latest,
    Selected,
    Specific,
    VersionSelection,
    select_unblocked,
)

VERSIONS = st.frozensets(st.integers(0, 2**63 - 1))
SELECTIONS: st.SearchStrategy[VersionSelection] = st.one_of(
    st.builds(Latest, st.integers(1, 5)), st.just(All()), st.builds(Specific, VERSIONS)
)


@pytest.mark.parametrize(
    ("selection", "found", "expected"),
    [
        (Latest(1), [], Selected(())),
        (Latest(1), [3, 1, 2], Selected((3,))),
        (Latest(2), [3, 1, 2], Selected((2, 3))),
        (Latest(5), [3, 1, 2], Selected((1, 2, 3))),
        (Latest(1), [9, 10], Selected((10,))),
        (All(), [3, 1, 2], Selected((1, 2, 3))),
        (All(), [], Selected(())),
        (Specific(frozenset({1, 3})), [3, 1, 2], Selected((1, 3))),
        (Specific(frozenset({1, 4})), [3, 1, 2], Selected((1,), missing=(4,))),
        (Specific(frozenset()), [3, 1, 2], Selected(())),
    ],
)
def test_selection_of_found_versions(
    selection: VersionSelection, found: list[int], expected: Selected
) -> None:
    assert selection.select(found) == expected


@pytest.mark.parametrize("version_count", [0, -1])
def test_latest_of_no_version_is_refused(version_count: int) -> None:
    with pytest.raises(InvalidConfig, match=f"is {version_count}; give 1 or more"):
        Latest(version_count)


@given(SELECTIONS, VERSIONS)
def test_selection_is_sorted_subset_in_any_order(
    selection: VersionSelection, found: frozenset[int]
) -> None:
    selected = selection.select(sorted(found))
    assert set(selected.versions) <= found
    assert list(selected.versions) == sorted(set(selected.versions))
    assert selection.select(sorted(found, reverse=True)) == selected


@given(VERSIONS, st.integers(1, 5))
def test_latest_leaves_out_only_lower_versions(found: frozenset[int], count: int) -> None:
    selected = set(Latest(count).select(found).versions)
    assert len(selected) == min(count, len(found))
    assert all(left_out < kept for left_out in found - selected for kept in selected)


@given(VERSIONS, VERSIONS)
def test_specific_versions_are_selected_or_missing(
    wanted: frozenset[int], found: frozenset[int]
) -> None:
    selected = Specific(wanted).select(found)
    assert {*selected.versions, *selected.missing} == wanted
    assert not found.intersection(selected.missing)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Latest(1), Selected((2,))),
        (Latest(2), Selected((1, 2))),
        (All(), Selected((1, 2))),
        (Specific(frozenset({1, 3})), Selected((1,))),
        (Specific(frozenset({1, 3, 4})), Selected((1,), missing=(4,))),
    ],
)
def test_blocked_version_is_not_selected_or_missing(
    selection: VersionSelection, expected: Selected
) -> None:
    assert select_unblocked(selection, [1, 2, 3], {3}) == expected


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (Latest(2), "latest 2"),
        (All(), "all"),
        (Specific(frozenset({10, 9})), "specific 9, 10"),
        (Specific(frozenset()), "specific (none)"),
    ],
)
def test_selection_has_readable_text(selection: VersionSelection, text: str) -> None:
    assert str(selection) == text
