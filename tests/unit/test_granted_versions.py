import pytest

from serving.base.errors import DataLoss
from serving.core.granted_versions import GrantedVersion, as_document, from_document


def test_grants_survive_their_document() -> None:
    granted = {"b": GrantedVersion(7, 3), "a": GrantedVersion(1, 9)}
    assert from_document(as_document(granted)) == granted
    assert [*as_document(granted)] == ["a", "b"]


@pytest.mark.parametrize(
    "document", [None, [], {"m": 7}, {"m": {"version": 7}}, {"m": {"version": "7", "order": 1}}]
)
def test_other_document_has_no_grants(document: object) -> None:
    with pytest.raises(DataLoss):
        from_document(document)
