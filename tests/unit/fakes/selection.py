"""The selection of the KServe repository."""

from dataclasses import dataclass, field


@dataclass
class FakeSelection:
    """Records the selections of the repository."""

    unloaded: frozenset[str] = frozenset()
    changes: list[tuple[str, bool]] = field(default_factory=list)

    def set_unloaded(self, name: str, *, is_unloaded: bool) -> None:
        self.changes.append((name, is_unloaded))
