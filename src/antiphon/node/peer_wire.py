"""What travels between nodes: replica messages, the coordinator's requests, snapshots; in the frames that clients use too.

The entries of an `Append` are the frame's payload, RecordBatches one after the other; their offsets and terms stand
in the batches themselves, so the header carries none. A batch's CRC is checked when it arrives, not only when it is
read.
"""

from typing import Any, Final

import msgspec

from antiphon.errors import CorruptBatchError, ProtocolViolationError
from antiphon.model.body import Body
from antiphon.model.cluster import (
    ClusterReply,
    ClusterRequest,
    EndTransaction,
    MetadataDelta,
    TransactionEnded,
)
from antiphon.model.messages import Reply, Request
from antiphon.model.peer_handshake import PeerChallenge
from antiphon.model.requests import Failure, HelloReply
from antiphon.partition.multi_batches import checked_entries
from antiphon.records.batch import CONTROL_BIT, checked_batches
from antiphon.records.builder import members_of
from antiphon.records.entry_id import EntryId
from antiphon.replication.members import Members
from antiphon.replication.messages import Append, Entry, Message
from antiphon.replication.multi_messages import Relay, ReplicaMessage
from antiphon.wire.frames import Buffer, MessageDecoder, encode_message


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a snapshot, whole: its plain name, its size and the CRC-32C of its bytes."""

    name: str
    size_bytes: int
    crc: int


class SnapshotBegin(Body, frozen=True, array_like=True, tag=True):
    """Leader to follower: a snapshot of the shard up to `at`, made of these files; answered by `SnapshotProgress`.

    A snapshot with the same id as one of which a part has arrived goes on where that was cut. `members`: of the shard at
    `at`, where replicas vote.
    """

    shard: int
    term: int
    at: EntryId
    snapshot_id: str
    files: tuple[SnapshotFile, ...]
    members: Members | None = None


class SnapshotProgress(Body, frozen=True, array_like=True, tag=True):
    """How many bytes of each file, in the order of `SnapshotBegin.files`, are there already."""

    have: tuple[int, ...]


class SnapshotChunk(Body, frozen=True, array_like=True, tag=True):
    """Bytes `position` .. of file number `file` of the snapshot; the payload, whose CRC-32C is `crc`.

    Sent as a request, a few at a time: the answers are the flow control.
    """

    shard: int
    snapshot_id: str
    file: int
    position: int
    crc: int


class SnapshotEnd(Body, frozen=True, array_like=True, tag=True):
    """Everything was sent: check it whole and put it in place."""

    shard: int
    term: int
    snapshot_id: str


SnapshotRequest = SnapshotBegin | SnapshotChunk | SnapshotEnd
PeerBody = Request | ClusterRequest | MetadataDelta | ReplicaMessage | SnapshotRequest | EndTransaction
# Messages come back where `dial` says so
PeerReply = Reply | ClusterReply | SnapshotProgress | TransactionEnded | ReplicaMessage

decode_peer = MessageDecoder(PeerBody)
"""Header of a frame from a node -> (request id, one of `PeerBody`)."""
decode_peer_reply = MessageDecoder(PeerReply)
"""Header of what a node sends on a connection that was made to it -> (request id, one of `PeerReply`)."""

decode_challenge = MessageDecoder(PeerChallenge | HelloReply | Failure)
"""Header of the first answer to a `PeerHello`."""

_replace = msgspec.structs.replace

FEEDS: Final = frozenset({Append, Relay})
"""Messages that may have entries."""


def encode_replica_message(message: Message) -> list[Buffer]:
    """The frame of a message to another replica of the shard."""
    if isinstance(message, (Append, Relay)) and message.entries:
        payload: list[Buffer] = [entry.data for entry in message.entries]  # type: ignore[misc]  # opaque to the pure part
        return encode_message(0, _replace(message, entries=()), payload)
    return encode_message(0, message)


def with_payload(message: Any, payload: memoryview) -> Any:
    """The message with what its frame carried behind it: entries, each checked, which own their bytes.

    Raises ProtocolViolationError where that is not right, such as batches that are no chain from an Append's `prev` on.
    """
    if not payload:
        return message
    if isinstance(message, Relay):
        return _replace(message, entries=checked_entries(message, payload))
    if not isinstance(message, Append):
        return message
    if message.entries:
        raise ProtocolViolationError("an Append carries its entries as payload only")
    # One copy; the chunk that the frame came in is shared with other shards and must not live on
    owned = bytes(payload)
    at = message.prev.offset
    entries: list[Entry] = []
    try:
        for header, batch in checked_batches(owned):
            if header.base_offset != at:
                raise ProtocolViolationError(f"a batch at {header.base_offset} was sent as the entry at {at}")
            at += header.last_offset_delta + 1
            said = members_of(batch) if header.attributes & CONTROL_BIT else None
            entries.append(Entry(header.leader_epoch, header.base_offset, at, batch, said))
    except CorruptBatchError as error:
        raise ProtocolViolationError(f"an Append for shard {message.shard} is damaged: {error}") from error
    return _replace(message, entries=tuple(entries))
