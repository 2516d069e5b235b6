"""What the committed logs say of transactions over shards of a table, a topic and offsets, read without the product's fold.

Of each key the versions in their order, each with the tag of who wrote it; of each transaction that was committed what it
changed, in all shards together. A transaction is known by its producer and the number that stands in its markers; one that
was a single request by its shard, with a minus sign, and its offset.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from antiphon.model.internal import GROUPS_TABLE
from antiphon.records.batch import iter_batches
from antiphon.records.builder import end_marker_of
from antiphon.records.changes import decode_changes
from antiphon.records.split_entries import Release, split_entry_of
from antiphon.simulation.cluster.whole_restore import committed_in, open_in
from antiphon.simulation.violation import require
from antiphon.transactions.group_offsets import Committed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from antiphon.records.batch import BatchHeader
    from antiphon.simulation.cluster.cluster import SimulatedCluster

TransactionKey = tuple[int, int]
"""Producer id and number; of a single request, which has no marker, -1 - shard id and offset."""


class Version(NamedTuple):
    """A version of a key. `by`: the transaction that wrote it; None: a plain write."""

    key: bytes
    version: int
    value: bytes | None
    by: TransactionKey | None

    @property
    def tag(self) -> str:
        """Of who wrote it; empty for a removal."""
        return "" if self.value is None else tag_of(self.value)


def tag_of(value: bytes) -> str:
    """Who wrote a value."""
    return value.partition(b" ")[2].decode()


@dataclass
class Changes:
    """What a committed transaction changed: the last value of each key."""

    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    shards: set[int] = field(default_factory=set)


class TransferHistory:
    """See the module's text. `shard_ids`: the shards that the table was made with."""

    def __init__(self, cluster: "SimulatedCluster", shard_ids: list[int]) -> None:
        self._cluster = cluster
        self.versions: dict[bytes, list[Version]] = {}
        self.changes: dict[TransactionKey, Changes] = {}
        starts = dict.fromkeys(shard_ids, 0)
        waiting = list(shard_ids)
        while waiting:  # a parent before its children: so each key's versions are in order
            shard_id = waiting.pop(0)
            for child, start in self._read(shard_id, starts[shard_id]):
                starts[child] = start
                waiting.append(child)

    def _batches(self, shard_id: int, start: int = 0) -> "Iterator[tuple[BatchHeader, bytes]]":
        for committed in self._cluster.evidence.truth(shard_id).batches:
            if committed.base_offset >= start:
                for header, data in iter_batches(committed.data):
                    yield header, bytes(data)

    def _read(self, shard_id: int, start: int) -> list[tuple[int, int]]:
        children: list[tuple[int, int]] = []
        pending: dict[int, list[Version]] = {}
        for header, data in self._batches(shard_id, start):
            one = header.producer_id
            if header.is_control and header.is_transactional:
                said = end_marker_of(data)
                if said is not None:
                    self._ended(shard_id, (one, said[1]), pending.pop(one, []), commit=said[0])
            elif header.is_control:
                entry = split_entry_of(data)
                if isinstance(entry, Release):
                    require(
                        not pending,
                        "split-prepared",
                        f"keys were released while {pending} was prepared",
                        shard_id,
                    )
                    children.append((entry.child, entry.start))
            else:
                found = [Version(one.key, one.version_id, one.value, None) for one in decode_changes([data])]
                if header.is_transactional:
                    pending.setdefault(one, []).extend(found)
                elif len(found) > 1 and len({one.tag for one in found if one.tag}) == 1:
                    self._ended(shard_id, (-1 - shard_id, header.base_offset), found, commit=True)
                else:
                    self._wrote(shard_id, found)
        require(not pending, "transfer-open", f"{pending} is prepared and was never ended", shard_id)
        return children

    def _ended(self, shard_id: int, by: TransactionKey, found: list[Version], *, commit: bool) -> None:
        if commit and found:
            changes = self.changes.setdefault(by, Changes())
            changes.shards.add(shard_id)
            changes.rows.update((one.key, one.value) for one in found)
            self._wrote(shard_id, [one._replace(by=by) for one in found])

    def _wrote(self, shard_id: int, found: list[Version]) -> None:
        for one in found:
            known = self.versions.setdefault(one.key, [])
            newest = max((other.version for other in known), default=-1)
            # A removal has the version that it removes.
            in_order = (
                one.version > newest
                if one.value is not None
                else bool(known) and one.version == known[-1].version
            )
            require(
                in_order,
                "version-order",
                f"key {one.key!r} got version {one.version} ({one.value!r}) behind {known[-1:]}",
                shard_id,
            )
            known.append(one)

    # -- the topic, and offsets -----------------------------------------------------------------------------------

    def journal(self, shard_ids: list[int]) -> list[str]:
        """The records of committed transactions in a topic."""
        found: list[str] = []
        for shard_id in shard_ids:
            truth = self._cluster.evidence.truth(shard_id)
            found += [bytes(value or b"").decode() for _, value in committed_in(truth)]
            left = open_in(truth)
            require(not left, "transfer-open", f"transactions of producers {left} never ended", shard_id)
        return found

    def offsets(self, group_start: str) -> dict[str, int]:
        """Offsets of the groups whose names begin so, by group."""
        found: dict[str, int] = {}
        for shard in self._cluster.shards_of(GROUPS_TABLE):
            for key, value, _ in self._cluster.evidence.truth(shard.shard_id).effects():
                kind, _, rest = key.decode(errors="replace").partition("/")
                if kind == "offset" and rest.startswith(group_start) and value is not None:
                    group = rest.partition("/")[0]
                    found[group] = msgspec.msgpack.decode(value, type=Committed).offset
        return found
