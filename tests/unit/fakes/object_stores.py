"""An object store in memory, whose reads fail when a test says so."""

from collections.abc import Callable, Sequence

from serving.source.listing import Child
from serving.storage.stored_objects import Objects, StoredObject, StoreError


class FakeStore:
    """`ObjectStore`. Each upload of an object has a new tag."""

    def __init__(self) -> None:
        self.contents: dict[str, dict[str, tuple[bytes, str]]] = {}
        self.upload_count = 0
        self.request_count = 0
        # Called before each read; it may raise, or change the store.
        self.before_read: Callable[[str, str], None] = lambda name, path: None
        self.is_down = False
        self.read_bytes_max: int | None = None
        self.digest_of: Callable[[bytes], tuple[str, bool]] = lambda data: ("", True)

    def upload(self, name: str, path: str, data: bytes) -> None:
        self.upload_count += 1
        self.contents.setdefault(name, {})[path] = (data, f"tag{self.upload_count}")

    def upload_version(self, version: int, size: int = 10) -> None:
        """Uploads a whole version, of which each byte shows the version and the upload."""
        mark = bytes([version % 256, self.upload_count % 256])
        self.upload(str(version), "saved_model.pb", mark)
        self.upload(str(version), "variables/variables.data", mark * size)

    def remove(self, name: str) -> None:
        self.contents.pop(name, None)

    def children(self) -> Sequence[Child]:
        self._answer()
        return [Child(name, True) for name in sorted(self.contents)]

    def objects(self, name: str) -> Objects:
        self._answer()
        found = self.contents.get(name, {})
        objects = []
        for path, (data, tag) in sorted(found.items()):
            digest, is_sure = self.digest_of(data)
            objects.append(StoredObject(path, len(data), tag, 0, digest, is_sure))
        return tuple(objects)

    def read(self, name: str, path: str, offset: int, size: int) -> bytes:
        self._answer()
        self.before_read(name, path)
        if path not in self.contents.get(name, {}):
            raise StoreError(f"{name}/{path}: not found")
        if self.read_bytes_max is not None:
            size = min(size, self.read_bytes_max)
        return self.contents[name][path][0][offset : offset + size]

    def _answer(self) -> None:
        self.request_count += 1
        if self.is_down:
            raise StoreError("the store is down")


class FakeVersions:
    """`mirror.Versions`: a model whose versions are what a test sets."""

    def __init__(self, select: Callable[[Sequence[int]], Sequence[int]]) -> None:
        self._select = select
        self.used: set[int] = set()
        self.failed_ones: set[int] = set()
        self.change_count = 0
        self.notes: frozenset[object] = frozenset()
        self.all_notes: list[frozenset[object]] = []

    def select(self, versions: object) -> Sequence[int]:
        assert isinstance(versions, (set, frozenset))
        return self._select(sorted(versions))

    def in_use(self) -> set[int]:
        return self.used

    def failed(self) -> set[int]:
        return self.failed_ones

    def files_changed(self) -> None:
        self.change_count += 1

    def set_store_notes(self, notes: frozenset[object]) -> None:
        self.notes = notes
        self.all_notes.append(notes)
