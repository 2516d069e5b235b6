"""What simulated nodes say to each other about the cluster, beside the messages of `wire.cluster`."""

from typing import NamedTuple

import msgspec

from antiphon.coordination.actions import Record
from antiphon.replication.messages import AnyMessage
from antiphon.wire.cluster import MetadataDelta


class ClusterBatch(NamedTuple):
    """Content of an entry of `__cluster`: records that are folded together. Who wrote it makes it unique."""

    node: int
    term: int
    token: int
    records: tuple[Record, ...]


class CoordinatorPacket(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Coordinator to node: what is new in the metadata, then messages for its replicas."""

    delta: MetadataDelta | None
    messages: tuple[AnyMessage, ...]


class NotCoordinator(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer of a node that does not coordinate; `hint` is the node that it believes to, or -1."""

    hint: int
