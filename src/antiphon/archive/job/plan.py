"""What is to be archived: for each shard, which offsets go to which files. Asks the cluster, changes nothing."""

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from antiphon.archive.catalog import Catalog, refuse_unfit
from antiphon.archive.files import Options, file_system
from antiphon.archive.format import FORMAT_VERSION, ArchivedFile, archived_until, reaching
from antiphon.archive.places import file_prefix, location_problem, shard_directory, topic_directory
from antiphon.client.blocking import Cluster, list_offsets
from antiphon.client.log_reader import committed_end
from antiphon.errors import ArchiveError, InvalidRequestError
from antiphon.model.metadata import ShardMeta, TopicMeta
from antiphon.model.requests import GetStatus, ReplicaStatus

LATEST: Final = -1
FILES_PER_RUN: Final = 100_000
_NAME: Final = re.compile(r"(\d{20})-(\d{20})-(\d{13})-([0-9a-f]{8})\.parquet")


class Limits(NamedTuple):
    """How much of each shard goes: what all of the limits that are given allow; without any, all that is committed."""

    older_than_ms: int | None = None
    keep_bytes: int | None = None
    up_to: int | Mapping[int, int] | None = None

    def check(self) -> None:
        """Raises InvalidRequestError for numbers that mean nothing."""
        for name, value in (("older_than_ms", self.older_than_ms), ("keep_bytes", self.keep_bytes)):
            if value is not None and value < 0:
                raise InvalidRequestError(f"{name} is not negative, {value} is")
        offsets = self.up_to.values() if isinstance(self.up_to, Mapping) else [self.up_to]
        if any(offset is not None and offset < 0 for offset in offsets):
            raise InvalidRequestError(f"up_to is an offset, or offsets by shard, not {self.up_to}")

    def offset(self, shard: int) -> int | None:
        """The limit by offset of one shard: a shard that is not among those that are named stays as it is."""
        return self.up_to.get(shard, 0) if isinstance(self.up_to, Mapping) else self.up_to


class ShardPlan(NamedTuple):
    """One shard. Offsets from `begin` to `cut` are to be archived in `spans`; up to `cut` the log may be trimmed.

    `lost`: how many offsets between the archive and the log retention took before they were archived.
    """

    shard: ShardMeta
    log_start: int
    high_watermark: int
    begin: int
    cut: int
    lost: int
    spans: tuple[tuple[int, int], ...]


def plan(cluster: Cluster, topic: TopicMeta, limits: Limits, file_bytes: int, now_ms: int) -> list[ShardPlan]:
    """What an archive run would do now, for every shard."""
    refuse_unfit(topic)
    limits.check()
    if isinstance(limits.up_to, Mapping):
        known = {shard.index for shard in topic.shards}
        for index in limits.up_to:
            if index not in known:
                raise InvalidRequestError(
                    f"{topic.name} has shards 0 to {len(topic.shards) - 1}, not {index}"
                )
    shard_ids = [shard.shard_id for shard in topic.shards]
    ends = list_offsets(cluster, dict.fromkeys(shard_ids, LATEST))
    by_age = ends
    if limits.older_than_ms is not None:
        by_age = list_offsets(cluster, dict.fromkeys(shard_ids, max(0, now_ms - limits.older_than_ms)))
    sizes = _sizes(cluster, topic)
    catalog = Catalog(cluster)
    found = []
    for shard in sorted(topic.shards, key=lambda shard: shard.index):
        end, aged = ends[shard.shard_id], by_age[shard.shard_id]
        status = sizes.get(shard.shard_id)
        offset_bytes = _offset_bytes(status)
        committed = committed_end(end)
        cut = committed
        if limits.older_than_ms is not None and aged.offset >= 0:
            cut = min(cut, aged.offset)
        if limits.keep_bytes is not None:
            cut = min(cut, committed - int(limits.keep_bytes / offset_bytes))
        limit = limits.offset(shard.index)
        cut = cut if limit is None else min(cut, limit)
        files = catalog.of_shard(topic, shard.index)
        begin = archived_until(files, end.log_start)
        if begin > committed:
            raise ArchiveError(
                f"{topic.name} shard {shard.index} is archived up to {begin}, but its log ends at {committed}: it "
                "lost what was committed, and other records may take those offsets. Look at both before you archive more"
            )
        last = max([end.deleted_before, *(file.end for file in files)]) if files else end.log_start
        lost = max(0, end.log_start - last) if reaching(files, end.log_start) == end.log_start else 0
        step = max(1, int(file_bytes / offset_bytes))
        spans = tuple((at, min(at + step, cut)) for at in range(begin, cut, step))
        found.append(ShardPlan(shard, end.log_start, committed, begin, max(cut, 0), lost, spans))
    if sum(len(one.spans) for one in found) > FILES_PER_RUN:
        raise InvalidRequestError(
            f"this would make more than {FILES_PER_RUN} files: give a larger file_bytes, or archive a part with up_to"
        )
    return found


def _sizes(cluster: Cluster, topic: TopicMeta) -> dict[int, ReplicaStatus]:
    """What the leaders say of their replicas; of a shard whose leader cannot be asked nothing."""
    wanted = {shard.shard_id: shard.leader for shard in topic.shards}
    found: dict[int, ReplicaStatus] = {}
    for node in {leader for leader in wanted.values() if leader >= 0}:
        reply: Any = cluster.ask(node, GetStatus()).body
        found.update(
            (one.shard_id, one)
            for one in reply.replicas
            if wanted.get(one.shard_id) == node and one.log_end >= 0
        )
    return found


def _offset_bytes(status: ReplicaStatus | None) -> float:
    """Bytes that an offset takes on the average, as far as is known."""
    if status is None or status.log_end <= status.log_start or status.size_bytes <= 0:
        return 128.0
    return max(1.0, status.size_bytes / (status.log_end - status.log_start))


# -- places ---------------------------------------------------------------------------------------------------------


class Place:
    """Where the files of one topic go: a directory for each shard, and names that tell what they are."""

    def __init__(self, root: str, topic: TopicMeta, options: Options | None) -> None:
        if "::" in root:
            raise InvalidRequestError(f"{root}: chained file systems are not supported; give a plain URI")
        self.topic = topic
        self._options = options
        system, path = file_system(root, options)
        self._directory = posixpath.join(path.rstrip("/") or "/", topic_directory(topic))
        self._system = system
        problem = location_problem(str(system.unstrip_protocol(self._directory)))
        if problem is not None:
            raise InvalidRequestError(f"readers would open nothing at {root}: {problem}")

    def _of_shard(self, shard: int) -> str:
        return posixpath.join(self._directory, shard_directory(shard))

    def new_file(self, shard: int, start: int, end: int, now_ms: int) -> ArchivedFile:
        """A file that is to be written; its name is still to be given the last part by `named`."""
        path = posixpath.join(self._of_shard(shard), f"{file_prefix(start, end)}{now_ms:013d}")
        return ArchivedFile(
            format=FORMAT_VERSION,
            topic=self.topic.name,
            topic_id=self.topic.topic_id.hex(),
            shard=shard,
            start=start,
            end=end,
            rows=0,
            controls=0,
            uri=str(self._system.unstrip_protocol(path)),
            size_bytes=0,
            checksum="",
            digest="",
            earliest_ms=-1,
            latest_ms=-1,
            archived_ms=now_ms,
        )

    def remove(self, file: ArchivedFile) -> None:
        """Remove a file; one that is gone already is fine."""
        remove_file(file, self._options)

    def files(self, shard: int) -> dict[str, int]:
        """URI -> when its writing began (ms since 1970), of a shard's files with names as they are given here."""
        directory = self._of_shard(shard)
        self._system.invalidate_cache(directory)
        try:
            found = self._system.ls(directory, detail=False)
        except FileNotFoundError:
            return {}
        parsed = ((str(path), _NAME.fullmatch(posixpath.basename(str(path)))) for path in found)
        return {
            str(self._system.unstrip_protocol(path)): int(match.group(3)) for path, match in parsed if match
        }

    def remove_uri(self, uri: str) -> None:
        """Remove a file by its URI."""
        self._system.rm(self._system._strip_protocol(uri))  # noqa: SLF001 - fsspec's name for it


def named(uri: str, attempt: str) -> str:
    """The whole URI of a file: no two attempts at writing one share it."""
    return f"{uri}-{attempt}.parquet"


def remove_file(file: ArchivedFile, options: Options | None) -> None:
    """Remove a file; one that is gone already is fine."""
    system, path = file_system(file.uri, options)
    try:
        system.rm(path)
    except FileNotFoundError:
        return
