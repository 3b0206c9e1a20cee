import pytest

from serving.storage.stored_objects import StoredObject, contents, fault_of_objects, total_bytes

GRAPH = StoredObject("saved_model.pb", 3, "a")


def test_content_is_path_size_and_tag():
    other = StoredObject("saved_model.pb", 3, "a", modified_ns=5, digest="md5:x")
    assert contents((GRAPH,)) == contents((other,)) == (("saved_model.pb", 3, "a"),)
    assert total_bytes((GRAPH, StoredObject("x", 4))) == 7


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
