"""What replicas of a shard say to each other where every one of them writes (S4.19, S4.20, S4.27).

The replica that wants entries dials (`Subscribe`) and is relayed what it lacks, for ever; data goes from relay to applier
only, acknowledgements both ways. A *session* numbers one subscription: what was said in an earlier one is ignored. The
transport carries the `entries` of a `Relay` as the frame's payload: RecordBatches, whose headers name origin and LSN.
"""

from antiphon.replication.messages import AnyMessage, Message
from antiphon.replication.origin_history import Chain, Chains, OriginEntry
from antiphon.replication.vclock import Vclock


class Subscribe(Message, frozen=True, array_like=True, tag=True):
    """Applier to relay: send everything beyond `vclock` (S4.19).

    `chains` are the digests of the histories that end there, for the relay to compare with its own. The origins in
    `skip` may be left out, because they come straight from their own nodes.
    """

    session: int
    vclock: Vclock
    chains: Chains
    skip: tuple[int, ...] = ()


class Relay(Message, frozen=True, array_like=True, tag=True):
    """Relay to applier: more entries, each with the chain of its origin before it; `vclock` is what the relay has durably.

    Without entries it confirms the session, or asks for an acknowledgement.
    """

    session: int
    seq: int
    vclock: Vclock
    chains: tuple[Chain, ...] = ()
    entries: tuple[OriginEntry, ...] = ()


class RelayAck(Message, frozen=True, array_like=True, tag=True):
    """Applier to relay: everything up to message `seq` is durable here, and so is `vclock` (S4.27, step 7)."""

    session: int
    seq: int
    vclock: Vclock


class RelayBase(Message, frozen=True, array_like=True, tag=True):
    """Relay to applier: my log begins with this clock; what came before was trimmed and can be had from me no more."""

    session: int
    vclock: Vclock
    chains: Chains

    def __post_init__(self) -> None:
        if len(self.vclock) != len(self.chains):
            raise ValueError(f"a clock of {len(self.vclock)} components has {len(self.chains)} chains")


class SplitBrainFound(Message, frozen=True, array_like=True, tag=True):
    """We have different entries under this identity, or before it: nothing goes over this link until somebody mends it."""

    origin: int
    lsn: int


class AskOrigin(Message, frozen=True, array_like=True, tag=True):
    """From a replica that lost part of its log: what have you of everybody's entries, mine included?

    Whoever answers has first made durable what it has, and takes nothing more of what is on its way to it.
    """

    nonce: int


class OriginAnswer(Message, frozen=True, array_like=True, tag=True):
    """The answer to `AskOrigin`: `vclock` is durable here."""

    nonce: int
    vclock: Vclock


MultiMessage = Subscribe | Relay | RelayAck | RelayBase | SplitBrainFound | AskOrigin | OriginAnswer

ReplicaMessage = AnyMessage | MultiMessage
"""What goes between replicas, however their shard is replicated."""
