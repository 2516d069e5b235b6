"""The actions that the coordinator returns. The node carries them out at once and in the order of the list."""

from dataclasses import dataclass

from antiphon.errors import AntiphonError
from antiphon.model.cluster import CommandDone, ProducerIdBlock
from antiphon.replication.messages import AnyMessage, NodeId

Record = tuple[bytes, bytes | None]  # key and after-image; None deletes


@dataclass(frozen=True, slots=True)
class Propose:
    """Append these records to `__cluster` as one batch; call `committed(token, version)` when it is committed.

    `version` is the exclusive end of the batch in the log. Proposals commit in the order they are made or not at all.
    """

    token: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send the messages to a node, in order, after the metadata that is committed so far. Messages may be lost."""

    to: NodeId
    messages: tuple[AnyMessage, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of the request with this token. Everything in it is committed."""

    token: int
    result: CommandDone | ProducerIdBlock | AntiphonError


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The committed metadata is now at `version`: push it to the nodes before the actions that follow are sent."""

    version: int


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """A replica that may lack committed entries is about to lead, as the topic allows: tell operators (C10, S3.18)."""

    shard_id: int
    term: int
    leader: NodeId


@dataclass(frozen=True, slots=True)
class ShardRecovered:
    """For whoever counts: a shard goes on from one replica, and what others had from offset `at` on is lost."""

    shard_id: int
    term: int
    node: NodeId
    at: int


Action = Propose | SendTo | Answer | MetadataChanged | UncleanElection | ShardRecovered
