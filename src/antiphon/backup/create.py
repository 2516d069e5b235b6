"""Makes a backup: logs are copied up to where they are, the cut is taken, and what is missing up to the cut is copied.

Most is copied before the cut, so little is left to copy after it. Where retention removes what was still to be copied, the
shard is copied again from its new start. What an earlier backup in the same place has of a log is not written again, nor are
files of a state that are the same. The manifest is written last.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from antiphon import system
from antiphon.backup.cut import LEASE_MS, TRIES, Cut, all_of, take_cut
from antiphon.backup.manifest import (
    Backup,
    CutReport,
    ShardBackup,
    TopicBackup,
    load,
    manifest_path,
    names_in,
    new_name,
    save,
)
from antiphon.backup.place import Place
from antiphon.backup.shard_copy import Copied, ShardCopy, Written
from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError, BackupError, UnknownShardError
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, Kind, TopicMeta, is_multi

AT_ONCE: Final = 4  # shards that are copied at a time
CUTS: Final = 3  # a cut is taken anew where a shard cannot be copied up to it

Tell = Callable[[str], None]


class _Run:
    """One backup on its way."""

    def __init__(
        self, client: AsyncClient, place: Place, without: Collection[str], base: Backup | None, tell: Tell
    ) -> None:
        self._client = client
        self._without = without
        self._tell = tell
        self.written = Written()
        self._place = place
        self._copies: dict[int, ShardCopy] = {}
        self._known = {} if base is None else {shard.shard_id: shard for shard in base.shards}
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def copy_ahead(self, meta: ClusterMeta) -> None:
        """Copy what there is now. What goes wrong with one shard is found again after the cut."""
        shards = [
            (shard.shard_id, topic.kind is Kind.TABLE)
            for topic in meta.topics
            if topic.name not in self._without and not is_multi(topic)
            for shard in topic.shards
            if shard.split is None
        ]

        done = 0

        async def one(shard_id: int, is_table: bool) -> None:
            nonlocal done
            async with self._gate:
                await self._copy_of(shard_id, is_table=is_table).ahead()
            done += 1
            self._tell(f"copied {done} of {len(shards)} shards, {self.written.size_bytes} bytes")

        for result in await asyncio.gather(*(one(*shard) for shard in shards), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, AntiphonError):
                raise result
            if isinstance(result, BackupError):
                raise result

    async def copy_rest(self, cut: Cut) -> dict[int, Copied]:
        """Copy every shard up to the cut."""
        found: dict[int, Copied] = {}
        shards = [(CLUSTER_SHARD_ID, False)]
        shards += [(one.shard_id, topic.kind is Kind.TABLE) for topic in cut.topics for one in topic.shards]

        async def one(shard_id: int, is_table: bool) -> None:
            async with self._gate:
                found[shard_id] = await self._copy_of(shard_id, is_table=is_table).up_to(cut.ends[shard_id])

        await all_of(one(*shard) for shard in shards)
        return found

    def _copy_of(self, shard_id: int, *, is_table: bool) -> ShardCopy:
        copy = self._copies.get(shard_id)
        if copy is None:
            known = self._known.get(shard_id)
            copy = self._copies[shard_id] = ShardCopy(
                self._client, self._place, shard_id, self.written, known, is_table=is_table
            )
        return copy


async def create_backup(
    client: AsyncClient,
    place: Place,
    *,
    without: Collection[str] = (),
    lease_ms: int = LEASE_MS,
    tries: int = TRIES,
    tell: Tell | None = None,
) -> Backup:
    """Make a backup of the cluster in `place`; see the module's text. Raises BackupError, and what the cluster answers."""
    say = tell or (lambda _text: None)
    began_ms = system.wall_ms()
    meta = await client.whole.refresh()
    _check_names(meta, without)
    base = await asyncio.to_thread(_base_in, place, meta.cluster_id)
    run = _Run(client, place, without, base, say)
    say("copying logs")
    await run.copy_ahead(meta)
    for number in range(1, CUTS + 1):
        say("taking the cut")
        cut = await take_cut(client, without=without, lease_ms=lease_ms, tries=tries, tell=tell)
        say("copying up to the cut")
        try:
            copied = await run.copy_rest(cut)
        except (BackupError, UnknownShardError) as error:  # trimmed, or deleted, before it was copied
            if number == CUTS:
                raise
            say(f"{error.message}; taking another cut")
        else:
            break
    state = cut.metadata.state.cluster
    backup = Backup(
        name=await asyncio.to_thread(lambda: new_name(names_in(place))),
        cluster_id=meta.cluster_id if state is None else state.cluster_id,
        version=system.installed_version(),
        created_ms=began_ms,
        took_ms=system.wall_ms() - began_ms,
        cut=CutReport(cut.began_ms, cut.ended_ms, cut.held_ms, cut.tries, cut.tried_ms),
        cluster=_shard(CLUSTER_SHARD_ID, 0, cut, copied),
        topics=tuple(_topic(topic, cut, copied) for topic in cut.topics),
        without=tuple(sorted(set(without))),
        base="" if base is None else base.name,
        written_bytes=run.written.size_bytes,
        written_files=run.written.files,
    )
    await asyncio.to_thread(_save, place, backup)
    return backup


def _save(place: Place, backup: Backup) -> None:
    """Let the backup exist, unless its base was removed meanwhile (`prune`): then files that it needs may be gone."""
    save(place, backup)
    if backup.base and backup.base not in names_in(place):
        place.remove(manifest_path(backup.name))
        raise BackupError(
            f"backup {backup.base}, which this one builds on, was removed from {place.uri} meanwhile: begin again"
        )


def _check_names(meta: ClusterMeta, without: Collection[str]) -> None:
    known = {topic.name for topic in meta.topics}
    unknown = sorted(name for name in without if name not in known)
    if unknown:
        raise BackupError(
            f"there is no topic or table {unknown[0]!r} to leave out: `antiphon topic list` shows all"
        )


def _base_in(place: Place, cluster_id: str) -> Backup | None:
    """The newest whole backup of this cluster: what it has need not be written again."""
    for name in reversed(names_in(place)):
        try:
            found = load(place, name)
        except AntiphonError:
            continue  # a damaged manifest is nobody's base
        if found.cluster_id == cluster_id:
            return found
    return None


def _topic(topic: TopicMeta, cut: Cut, copied: dict[int, Copied]) -> TopicBackup:
    return TopicBackup(
        name=topic.name,
        topic_id=topic.topic_id.hex(),
        kind=str(topic.kind.value),
        replicas=topic.replicas,
        profile=topic.profile,
        config=dict(topic.config),
        internal=topic.internal,
        shards=tuple(_shard(shard.shard_id, shard.index, cut, copied) for shard in topic.shards),
    )


def _shard(shard_id: int, index: int, cut: Cut, copied: dict[int, Copied]) -> ShardBackup:
    held, found = cut.ends[shard_id], copied[shard_id]
    state, deleted = found.state, held.deleted_before
    return ShardBackup(shard_id, index, held.term, found.start, held.end, found.pieces, state, deleted)
