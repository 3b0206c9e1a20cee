from tests.unit.fresh_python import run_python


def test_lasting_objects_are_left_out_of_searches() -> None:
    run_python(
        "import gc\n"
        "from serving.base.lasting_objects import lasting_objects\n"
        "with lasting_objects():\n"
        "    assert not gc.isenabled()\n"
        "    lasting = [object() for _ in range(10)]\n"
        "assert gc.isenabled()\n"
        "assert gc.get_freeze_count() > 1_000\n"
        "assert not any(found is lasting for found in gc.get_objects())\n"
    )


def test_garbage_of_later_objects_is_found() -> None:
    run_python(
        "import gc, weakref\n"
        "from serving.base.lasting_objects import lasting_objects\n"
        "class Node: pass\n"
        "with lasting_objects():\n"
        "    Node()\n"
        "node = Node()\n"
        "node.itself = node\n"
        "gone = weakref.ref(node)\n"
        "del node\n"
        "gc.collect()\n"
        "assert gone() is None\n"
    )
