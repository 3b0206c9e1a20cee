"""The decisions of a mirror: which versions it lists, copies and deletes. Pure functions on values."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from serving.base.clock import NS_PER_SECOND
from serving.source.notes import Note
from serving.storage.stored_objects import (
    Objects,
    contents,
    distinct_bytes,
    fault_of_objects,
)

SETTLE_NS = 2 * NS_PER_SECOND
"""The time between two listings of a version that must be equal before it is copied.

An upload that pauses for longer is detected by the check of the copy, before the copy is renamed in.
"""

RELIST_NS = 60 * NS_PER_SECOND
"""The time between two listings of a version whose copy is complete, and between two checks of a copy
that was refused.

Each listing is a request that is paid for.
"""

Select = Callable[[Collection[int]], Collection[int]]
"""Returns the versions that the model's selection takes among the given ones."""


@dataclass(frozen=True, kw_only=True)
class RemoteVersion:
    """A version in the store, as it was listed last.

    `unchanged_since_ns` is when this content was seen first, and `listed_at_ns` when it was seen last.
    `refusal` is the reason why the copy of this content was refused, "" if it was not.
    """

    objects: Objects
    unchanged_since_ns: int
    listed_at_ns: int
    refusal: str = ""
    refused_at_ns: int = 0

    @property
    def fault(self) -> str:
        """The reason why this content cannot be served, or ""."""
        return fault_of_objects(self.objects) or self.refusal

    def settles_in_ns(self) -> int:
        """The nanoseconds from the last look until the content may be copied; 0: now."""
        return max(0, SETTLE_NS - (self.listed_at_ns - self.unchanged_since_ns))


def listed(previous: RemoteVersion | None, objects: Objects, now_ns: int) -> RemoteVersion:
    """The version after one more listing. A change of the content starts anew."""
    if previous is None or contents(previous.objects) != contents(objects):
        return RemoteVersion(objects=objects, unchanged_since_ns=now_ns, listed_at_ns=now_ns)
    return replace(previous, listed_at_ns=now_ns)


@dataclass(frozen=True, kw_only=True)
class MirrorView:
    """All that a decision depends on.

    `remote` are the versions with a directory in the store. `listed` are those whose objects were listed,
    and `local` the objects of each whole copy. `in_use` are versions that are aspired, load, serve or
    unload. `failed` are versions whose last load has ended with an error: they are not served, although
    they may be aspired. `budget_bytes` bounds the copies, except for versions that are selected or in use.
    If `keeps_last`, the last copy is not deleted.
    """

    remote: frozenset[int]
    listed: Mapping[int, RemoteVersion] = field(default_factory=dict)
    local: Mapping[int, Objects] = field(default_factory=dict)
    partial: frozenset[int] = frozenset()
    gone_before: frozenset[int] = frozenset()
    in_use: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    keeps_last: bool = True
    budget_bytes: int = 0
    now_ns: int = 0


def selected_versions(view: MirrorView, select: Select) -> frozenset[int]:
    """Selects the versions that there should be copies of.

    The selection is made several times: with all versions, without those that cannot be served as they are,
    and without those that settle. So a version whose upload is under way does not displace a whole one. A
    faulty version does not displace one that settles either, because that one would never be listed again.
    A fault counts for a while only, because the upload may have gone on since.
    """
    remote = view.remote
    coming = {version: item for version, item in view.listed.items() if version not in view.local}
    faulty = {
        version
        for version, item in coming.items()
        if item.fault and view.now_ns - item.listed_at_ns < 2 * RELIST_NS
    }
    settling = {version for version, item in coming.items() if item.settles_in_ns() > 0}
    return frozenset(
        {*select(remote), *select(remote - faulty), *select(remote - faulty - settling)}
    )


def to_remove(view: MirrorView) -> frozenset[int]:
    """The copies to delete, because their versions are gone from the store.

    A version is gone if two looks in a row miss it. If the store has no version, `keeps_last` keeps all,
    as for a local directory. If it has only versions of which there is no whole copy yet, `keeps_last`
    keeps the highest copy: their uploads may never end.
    """
    if not view.remote and view.keeps_last:
        return frozenset()
    gone = frozenset(view.local) & view.gone_before - view.remote
    whole = {version for version, objects in view.local.items() if objects}
    if view.keeps_last and whole and not whole - gone:
        return gone - {max(whole)}
    return gone


def partials_to_drop(view: MirrorView, selected: frozenset[int]) -> frozenset[int]:
    """The interrupted copies that will not go on."""
    return view.partial - (selected & view.remote)


def to_list(view: MirrorView, selected: frozenset[int]) -> tuple[int, ...]:
    """The versions whose objects are listed in this look, the highest first."""
    return tuple(sorted((v for v in selected if _is_listing_due(view, v)), reverse=True))


def _is_listing_due(view: MirrorView, version: int) -> bool:
    item = view.listed.get(version)
    if item is None:
        return True
    # A refused version is listed in each look, because most likely its upload goes on.
    return not _is_copied(view, version) or view.now_ns - item.listed_at_ns >= RELIST_NS


def _is_copied(view: MirrorView, version: int) -> bool:
    item, local = view.listed.get(version), view.local.get(version)
    return item is not None and local is not None and contents(local) == contents(item.objects)


def next_copy(view: MirrorView, selected: frozenset[int]) -> int | None:
    """The version whose copy goes on now, the highest first; None if none can."""
    for version in sorted(selected & view.listed.keys(), reverse=True):
        item = view.listed[version]
        if item.settles_in_ns() > 0 or _is_copied(view, version) or _rests(view, version):
            continue
        if _is_held(view, version):
            continue
        return version
    return None


def _is_held(view: MirrorView, version: int) -> bool:
    """True if the copy is loaded.

    It must not be replaced then, because its memory may be mapped from its files.
    """
    return version in view.local and version in view.in_use - view.failed


def _rests(view: MirrorView, version: int) -> bool:
    """True if the content is not that of a version, or was refused a short time ago."""
    item = view.listed[version]
    if fault_of_objects(item.objects):
        return True
    return bool(item.refusal) and view.now_ns - item.refused_at_ns < RELIST_NS


def to_evict(view: MirrorView, selected: frozenset[int], incoming: int | None) -> tuple[int, ...]:
    """The copies to delete for the budget, the lowest versions first.

    `incoming` is the version that is copied next. A copy that is selected or in use is never deleted.
    """
    kept = dict(view.local)
    if incoming is not None and incoming not in kept:
        kept[incoming] = view.listed[incoming].objects
    evicted = []
    for version in sorted(view.local.keys() - selected - view.in_use):
        if distinct_bytes(kept.values()) <= view.budget_bytes:
            break
        del kept[version]
        evicted.append(version)
    return tuple(evicted)


def copied_files(local: Mapping[int, Objects]) -> Mapping[tuple[str, int], tuple[int, str]]:
    """The version and path of a file of each content that a whole copy has already."""
    return {
        content: (version, item.path)
        for version, objects in sorted(local.items())
        for item in objects
        if (content := item.file_content) is not None
    }


def mirror_notes(view: MirrorView, selected: frozenset[int]) -> frozenset[Note]:
    """The notes on versions that are not whole, were overwritten, or exceed the budget."""
    notes = set()
    for version in selected & view.listed.keys():
        item = view.listed[version]
        if _is_copied(view, version):
            continue
        if _is_held(view, version):
            notes.add(
                Note.of(
                    "store_version_overwritten",
                    version=version,
                    remedy="upload other files under a new version",
                )
            )
        elif item.fault:
            notes.add(Note.of("version_incomplete", version=version, reason=item.fault))
        else:
            reason = "its upload was seen to change" if item.settles_in_ns() else "it is fetched"
            notes.add(Note.of("version_fetching", "info", version=version, reason=reason))
    if not view.remote:
        notes.add(Note.of("no_version_in_store", "info"))
        if view.local and view.keeps_last:
            notes.add(Note.of("last_version_gone_from_store", kept=tuple(sorted(view.local))))
    kept = selected | view.in_use
    kept_bytes = distinct_bytes(o for version, o in view.local.items() if version in kept)
    if kept_bytes > view.budget_bytes:
        notes.add(
            Note.of(
                "model_cache_above_budget",
                needed_bytes=kept_bytes,
                budget_bytes=view.budget_bytes,
                remedy="raise --model_cache_bytes, or select fewer versions",
            )
        )
    return frozenset(notes)


def next_look_seconds(view: MirrorView, selected: frozenset[int], period_seconds: float) -> float:
    """The seconds until the next look: 0 while a copy is under way."""
    if next_copy(view, selected) is not None:
        return 0
    settling = [view.listed[version].settles_in_ns() for version in selected & view.listed.keys()]
    unlisted = [0 for version in selected - view.listed.keys()]
    waits = [ns / NS_PER_SECOND for ns in settling if ns > 0]
    return min([period_seconds, *waits, *unlisted])
