"""What is archived, and what is neither in the archive nor in the log any more."""

from typing import Any, Final

from antiphon.archive.catalog import Catalog, topic_named
from antiphon.archive.format import ArchivedFile, archived_until, topic_prefix
from antiphon.archive.job.run import addresses
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.model.requests import ListOffset

TIMEOUT_MS: Final = 60_000
EARLIEST: Final = -2


def archived_files(servers: str, topic: str | None) -> list[ArchivedFile]:
    """The catalog, or its part for one topic."""
    with Cluster(addresses(servers), TIMEOUT_MS) as cluster:
        cluster.metadata()
        prefix = b"" if topic is None else topic_prefix(topic_named(cluster, topic).topic_id)
        found = Catalog(cluster).files(prefix)
    return sorted(found, key=lambda file: (file.topic, file.topic_id, file.shard, file.start))


def gaps(servers: str, files: list[ArchivedFile]) -> list[dict[str, Any]]:
    """Offsets between archived files, or between the last and the log's start, of the topics that are there."""
    found: list[dict[str, Any]] = []
    with Cluster(addresses(servers), TIMEOUT_MS) as cluster:
        for topic in cluster.metadata().topics:
            for shard in topic.shards:
                own = [
                    file
                    for file in files
                    if file.topic_id == topic.topic_id.hex() and file.shard == shard.index
                ]
                if not own:
                    continue
                request = ListOffset(shard.shard_id, EARLIEST)
                reply = cluster.call(ShardCall(shard.shard_id, request)).body
                log_start = reply.log_start
                at = own[0].start
                for start in [*(file.start for file in own), log_start]:
                    at = max(archived_until(own, at), reply.deleted_before)  # what was deleted is no gap
                    if at < start <= log_start:
                        found.append({"topic": topic.name, "shard": shard.index, "start": at, "end": start})
                        at = start
    return found
