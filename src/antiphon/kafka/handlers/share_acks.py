"""ShareAcknowledge, and the acknowledgements that come with a ShareFetch: stored before they are answered."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from antiphon.coordination.share_terms import Ack, AckType, ShareRefused
from antiphon.errors import AntiphonError
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.share_partitions import Place, Share, SharePartitions, now_ms
from antiphon.kafka.handlers.share_places import Failed, SharePlaces
from antiphon.kafka.messages.share_groups import AcknowledgementBatch, ShareTopicWanted
from antiphon.security.authorizer import Rights

_CODES: Final = {
    ShareRefused.BAD_RANGE: code.INVALID_REQUEST,
    ShareRefused.BAD_STATE: code.INVALID_RECORD_STATE,
}


Told = dict[Place, Failed | None]  # None: all is well


class ShareAcks:
    """Takes acknowledgements to the share-partitions."""

    def __init__(self, places: SharePlaces, shares: SharePartitions) -> None:
        self._places = places
        self._shares = shares

    async def take(
        self, rights: Rights, member: tuple[str, str], topics: Sequence[ShareTopicWanted], *, renews: bool
    ) -> Told:
        """What became of the acknowledgements in a request of a member (its group and id), once it is stored."""
        told: Told = {}
        changed: list[tuple[Place, Share]] = []
        for place, batches in _acknowledged(member[0], topics):
            share = await self._places.find(rights, place)
            if isinstance(share, Failed):
                told[place] = share
                continue
            told[place] = self._take(share, member[1], batches, renews=renews)
            if told[place] is None:
                changed.append((place, share))
        results = await asyncio.gather(
            *(self._shares.settle(share) for _, share in changed), return_exceptions=True
        )
        for (place, _), result in zip(changed, results, strict=True):
            if isinstance(result, AntiphonError):
                told[place] = self._places.failed(place, result, stored=True)
            elif isinstance(result, BaseException):
                raise result
        return told

    def _take(
        self, share: Share, member: str, batches: Sequence[AcknowledgementBatch], *, renews: bool
    ) -> Failed | None:
        renewed = any(AckType.RENEW in batch.acknowledge_types for batch in batches)
        if renewed and not (renews and share.settings.renews):
            return Failed(code.INVALID_REQUEST, "locks are not renewed by this request, or not in this group")
        acks = [
            Ack(batch.first_offset, batch.last_offset + 1, tuple(batch.acknowledge_types))
            for batch in batches
        ]
        refused = share.machine.acknowledge(now_ms(), member, acks)
        self._shares.changed(share)
        return None if refused is None else Failed(_CODES[refused], refused.value)

    def release(self, member: tuple[str, str], places: Sequence[tuple[bytes, int]], *, unseen: bool) -> None:
        """The member works on nothing of these partitions any more."""
        for topic_id, partition in places:
            share = self._shares.find(Place(member[0], topic_id, partition))
            if share is not None and share.machine.release(now_ms(), member[1], unseen=unseen):
                self._shares.changed(share)


def _acknowledged(
    group: str, topics: Sequence[ShareTopicWanted]
) -> Iterator[tuple[Place, list[AcknowledgementBatch]]]:
    for topic in topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                yield (
                    Place(group, topic.topic_id, partition.partition_index),
                    partition.acknowledgement_batches,
                )
