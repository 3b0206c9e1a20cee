import pytest

from serving.storage.stored_objects import (
    StoredObject,
    contents,
    distinct_bytes,
    fault_of_objects,
    total_bytes,
)

GRAPH = StoredObject("saved_model.pb", 3, "a")


def test_content_is_path_size_and_tag():
    other = StoredObject("saved_model.pb", 3, "a", modified_ns=5, digest="md5:x")
    assert contents((GRAPH,)) == contents((other,)) == (("saved_model.pb", 3, "a"),)
    assert total_bytes((GRAPH, StoredObject("x", 4))) == 7


MD5 = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("item", "known"),
    [
        (StoredObject("a", 3, MD5, digest=f"md5:{MD5}", is_digest_sure=False), (f"md5:{MD5}", 3)),
        (StoredObject("a", 3, f"{MD5}-12"), (f"{MD5}-12", 3)),
        # Neither Google's nor Azure's tags are made from the content.
        (StoredObject("a", 3, "CJjK7f2r"), None),
        (StoredObject("a", 3, "0x8D4BCC2E4835CD0"), None),
        (StoredObject("a", 3, "1767312000000000000"), None),
        (StoredObject("a", 3), None),
    ],
)
def test_file_is_known_by_its_digest(item: StoredObject, known: tuple[str, int] | None):
    assert item.file_content == known


def test_linked_files_are_counted_once():
    table = StoredObject("table", 100, digest="md5:a")
    first, second = (table, StoredObject("rows", 3)), (table, StoredObject("rows", 5))
    assert distinct_bytes([first, second]) == 108
    assert distinct_bytes([first, (StoredObject("table", 50, digest="md5:a"),)]) == 153
    assert distinct_bytes([]) == 0


def test_version_needs_a_graph():
    assert fault_of_objects(()) == "saved_model.pb is not there yet"
    assert fault_of_objects((GRAPH, StoredObject("variables/v", 0))) == ""
    assert fault_of_objects((StoredObject("saved_model.pbtxt", 1),)) == ""


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a//b", "/x", "a\\b", "a/./b", "a\nb"])
def test_object_outside_of_the_version_is_refused(path: str):
    assert repr(path) in fault_of_objects((GRAPH, StoredObject(path, 1)))


def test_object_below_a_file_is_refused():
    objects = (GRAPH, StoredObject("a", 1), StoredObject("a/b", 1))
    assert "is below an object that is a file" in fault_of_objects(objects)
