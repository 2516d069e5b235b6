"""What is wrong on this node and since when: collected from the replicas, and told by whoever finds something else.

Now and then `look` asks replicas how they are: those that were opened or told of anything since they were well, and a few
others, each in its turn, so that a node with thousands of healthy replicas has little to do. A replica has one finding at
a time, from the moment when something was found until it is as it should be again, whatever it goes through in between,
restarts of the node too (`first_seen`). What was mended is kept for a while, to be shown.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import structlog

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    DamagedLogError,
    DamagedStoreError,
    NewerFormatError,
    ResourceExhaustedError,
)
from antiphon.model.findings import DEGRADED, OF_NODE, UNHEALTHY, Finding

if TYPE_CHECKING:
    from antiphon.log.wal import Wal
    from antiphon.node.first_seen import FirstSeen
    from antiphon.partition.partition import Partition

MENDED_MAX: Final = 50
OTHERS: Final = 16  # replicas that nobody has told of anything, which a look asks nevertheless
WAITS: Final = (
    "nothing: it is fetched again from the other replicas, which have to be in reach; if most of them are lost for good: "
    "`antiphon shard recover`"
)
FULL: Final = "make room on the disk: writes are taken again by themselves"


class Noted(NamedTuple):
    """What a part of the node has found, under its own name (`kind`); see `Finding`."""

    kind: str
    shard_id: int
    what: str
    do: str = ""
    level: str = DEGRADED


class Closed(Protocol):
    """Replicas that are not open.

    Attributes:
        broken: those that cannot be opened, and why.
    """

    broken: dict[int, AntiphonError]

    def is_being_opened(self, shard_id: int) -> bool:
        """Is the replica on its way from closed to open?"""


class Findings:
    """See the module's text. All of it runs on the node's event loop.

    Args:
        hosts: the replicas that are open.
        suspects: shards whose replica may not be as it should; those that are well are taken out.
        shards: the replicas that are not open.
        wal: the node's.
        first_seen: since when things are known.
    """

    def __init__(
        self,
        hosts: "dict[int, Partition]",
        suspects: set[int],
        shards: Callable[[], Closed],
        wal: "Wal",
        first_seen: "FirstSeen",
    ) -> None:
        self._hosts = hosts
        self._suspects = suspects
        self._others: list[int] = []  # whose turn is still to come
        self._shards = shards
        self._wal = wal
        self._first_seen = first_seen
        self._noted: dict[tuple[int, str], Noted] = {}  # by shard and kind
        self._known: dict[tuple[int, str], Finding] = {}
        self._mended: deque[Finding] = deque(maxlen=MENDED_MAX)
        self._log = structlog.get_logger()

    def note(self, noted: Noted) -> None:
        """Somebody has found this. It stays until it is taken back."""
        if self._noted.get((noted.shard_id, noted.kind)) != noted:
            self._noted[noted.shard_id, noted.kind] = noted
            self.look()

    def take_back(self, shard_id: int, kind: str) -> None:
        """It is so no more."""
        if self._noted.pop((shard_id, kind), None) is not None:
            self.look()

    def read_whole(self, shard_id: int) -> None:
        """The scrub has read the replica, and found nothing."""
        self._first_seen.read_whole(shard_id)

    @property
    def now(self) -> tuple[Finding, ...]:
        """What is wrong as of the last look, the oldest first."""
        return tuple(sorted(self._known.values(), key=lambda one: (one.since_ms, one.shard_id)))

    @property
    def all(self) -> tuple[Finding, ...]:
        """The same, and what was mended last."""
        self.look()
        return (*self.now, *self._mended)

    def look(self) -> None:
        """Compare what is wrong now with what was at the last look."""
        now_ms = system.wall_ms()
        found = {self._key(one): one for one in self._all_noted()}
        shards = self._shards()
        for key, finding in list(self._known.items()):
            if key not in found and not shards.is_being_opened(key[0]):
                del self._known[key]
                self._first_seen.mended(key)
                self._mended.append(msgspec.structs.replace(finding, mended_ms=now_ms))
                self._log.info("finding_mended", kind=finding.kind, shard=finding.shard_id)
        for key, one in found.items():
            before = self._known.get(key)
            since_ms = self._first_seen.since_ms(key, now_ms) if before is None else before.since_ms
            if before is None:
                self._log.warning("finding", kind=one.kind, shard=one.shard_id, what=one.what, do=one.do)
            self._known[key] = Finding(one.kind, one.shard_id, one.level, since_ms, one.what, one.do)

    @staticmethod
    def _key(noted: Noted) -> tuple[int, str]:
        """A replica goes through several states until it is mended; that is one finding. The node's are apart."""
        return noted.shard_id, noted.kind if noted.shard_id == OF_NODE else ""

    def _all_noted(self) -> Iterator[Noted]:
        """Of one replica the last one counts: its own state, where that is not as it should be."""
        yield from self._noted.values()
        if self._wal.refuses_clients:
            what = f"there is no {self._wal.lacks}: writes are refused, reads go on"
            yield Noted("disk_full", OF_NODE, what, FULL)
        for shard_id, error in self._shards().broken.items():
            yield Noted("replica_closed", shard_id, error.message, _what_to_do(error), UNHEALTHY)
        yield from self._of_replicas()

    def _of_replicas(self) -> Iterator[Noted]:
        hosts, suspects = self._hosts, self._suspects
        if not self._others:
            self._others = list(hosts)
        suspects.update(self._others.pop() for _ in range(min(OTHERS, len(self._others))))
        for shard_id in sorted(suspects):
            host = hosts.get(shard_id)
            noted = None if host is None else _state_of(shard_id, host)
            if noted is not None:
                yield noted
            elif host is None or host.log.damaged is None:
                suspects.discard(shard_id)


def _what_to_do(error: AntiphonError) -> str:
    """What a person does about a replica that stopped for this."""
    match error:
        case DamagedLogError() | DamagedStoreError():
            return WAITS
        case ResourceExhaustedError():
            return "make room, or allow the process more files: it is opened again every few seconds"
        case NewerFormatError():
            return "start the version of Antiphon that wrote it"
    return "look at the disk and at node.log, then restart this node"


def _state_of(shard_id: int, host: "Partition") -> Noted | None:
    """What is wrong with a replica that is open; None where nothing is."""
    state, damaged = host.state, host.log.damaged
    if state.failed is not None:
        return Noted("replica_stopped", shard_id, state.failed.message, _what_to_do(state.failed), UNHEALTHY)
    if damaged is not None and not damaged.joins:
        what = f"from offset {damaged.offset} on, {damaged.path}: {damaged.reason}"
        return Noted("log_damaged", shard_id, what, WAITS, UNHEALTHY)
    word = host.status().state
    if word == "ahead_of_leader":
        what = "this replica has acknowledged entries that its leader lacks"
        return Noted(word, shard_id, what, "keep this node's directory; see docs/guarantees.md", UNHEALTHY)
    if word == "split_brain":
        what = "another replica has other entries under the same identity"
        return Noted(word, shard_id, what, "see docs/divergence.md", DEGRADED)
    return None
