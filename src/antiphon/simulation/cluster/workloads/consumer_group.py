"""A group of Kafka's consumer protocol, whose members come and go while coordinators do.

- `one-owner`: no member is given a partition that another one has, or may still think that it has.
- `member-forgotten`: a member that was answered within its session is known, whoever coordinates by now.
- `two-holders`: in the log of the group's shard, no two members hold a partition at the same time.
- `stale-commit`: a commit in that log is of a member that the group has there, in the epoch that it has there.
- `refused-commit`, `commit-kept`, `commit-found`: as for groups of the classic protocol (`kafka_group`).
- `interval-told`: members are told what an operator has set of the group before they came.
- At the end one member comes to own every partition, or the run does not end.

The rows in the log are read as they are written, without the code that writes them.
"""

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon.records.changes import effects_of
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.consumer_history import History
from antiphon.simulation.cluster.workloads.consumer_member import GROUP, TOPIC, ConsumerMember
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.runtime.process import calling_process
from antiphon.simulation.violation import require
from antiphon.transactions.group_offsets import Committed

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

AWAY_S: Final = 0.5
GROUP_RESOURCE: Final = 32
Row = tuple[str, str, bytes | None]  # kind, name, value


@workload("consumer_members", 22, Drawn(one_of(0, 0, 0, 0, 2), "consumers"), logs_in=False)
class ConsumerGroupWorkload(KafkaWorkload):
    """Members of a group of Kafka's consumer protocol come, go and fall silent while coordinators do.

    Checked: no partition is given to a member while another one has it or may think so; a member that was answered within
    its session is known to every coordinator; in the log no two members hold a partition, and each commit is of a member
    in its epoch of then; committed offsets stay; what an operator sets of the group's heartbeats and sessions holds, whoever
    coordinates; in the end everything is owned.
    """

    topic = TOPIC
    partitions = 5
    group = GROUP

    def __init__(self, cluster: "SimulatedCluster", name: str = "consumer-group") -> None:
        super().__init__(cluster, name)
        self.history = History()
        self.outcomes = self.history.outcomes
        self._lives = 0

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: the table of groups is made when somebody looks for a coordinator."""
        await super().set_up(db)
        client = self.client(calling_process())
        self.history.has_own = self.cluster.stream("settings of the group").random() < 0.5
        while await client.coordinator(self.group) is None or not await self._configure(client):
            await client.back_off()
        client.close()

    async def _configure(self, client: KafkaClient) -> bool:
        if not self.history.has_own:
            return True
        values = {
            "consumer.heartbeat.interval.ms": str(self.history.heartbeat_ms),
            "consumer.session.timeout.ms": str(self.history.session_ms),
        }
        with contextlib.suppress(NoAnswerError):
            return not (await client.alter_configs(GROUP_RESOURCE, self.group, values)).error_code
        return False

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.consumer_members, self._come_and_go)
        self.spawn("last", self._come_last)

    def _member(self, process: "Process") -> ConsumerMember:
        self._lives += 1
        return ConsumerMember(self, self.history, process, self.client(process), self._lives)

    async def _come_and_go(self, process: "Process", _number: int) -> None:
        while not self.stopped:
            ends_s = self.now + process.random.choice((0.5, 2.0, 10.0))
            await self._member(process).live(ends_s)
            await self.sleep(process, AWAY_S)

    async def _come_last(self, process: "Process") -> None:
        while not self.stopped:
            await self.sleep(process, AWAY_S)
        last = self._member(process)
        await last.look()
        await last.live(0.0, until_all=True)

    # -- judges ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        shard_id = self.cluster.shard_of_group(self.group)
        self.history.check(shard_id, self._check_log(shard_id))

    def _check_log(self, shard_id: int) -> dict[str, int]:
        """Follow the group through the log; returns where commits are, by their texts."""
        places: dict[str, int] = {}
        epochs: dict[str, int] = {}
        held: dict[str, set[tuple[bytes, int]]] = {}
        for batch in self.cluster.evidence.truth(shard_id).batches:
            effects = [(key, value) for key, value, _ in effects_of(batch.data)]
            rows = [_row(self.group, key, value) for key, value in effects]
            self._look_at(shard_id, effects)
            for kind, name, value in rows:
                if kind == "member":
                    _take_member(name, value, epochs, held)
                elif kind == "offset" and value is not None:
                    self._check_commit(shard_id, name, value, epochs, places)
            if any(kind == "member" for kind, _, _ in rows):
                _check_holders(shard_id, held)
        return places

    def _look_at(self, shard_id: int, effects: list[tuple[bytes, bytes | None]]) -> None:
        """The rows of the next batch of the group's shard."""

    def _may_commit(self, member: str, epoch: int, epochs: dict[str, int]) -> bool:
        """Is this the epoch that the group has for the member, in the log up to here?"""
        return epochs.get(member) == epoch

    def _check_commit(
        self, shard_id: int, name: str, value: bytes, epochs: dict[str, int], places: dict[str, int]
    ) -> None:
        row = msgspec.msgpack.decode(value, type=Committed)
        asked = self.history.commits.get(row.metadata)
        if asked is None or (f"{TOPIC}/{asked.partition}", asked.offset) != (name, row.offset):
            require(False, "nobodys-commit", f"nobody asked for the commit {row} of {name}", shard_id)
            return
        epoch, member = asked.round
        require(
            self._may_commit(member, epoch, epochs),
            "stale-commit",
            f"the commit {row.metadata} is of epoch {epoch}; the group has {epochs.get(member)} for the member",
            shard_id,
        )
        places[row.metadata] = len(places)


def _row(of_group: str, key: bytes, value: bytes | None) -> Row:
    """Kind and name of a row of this group; empty for others."""
    kind, group, *rest = key.decode().split("/")
    if group != of_group or not rest:  # what is set of a group has no more in its key
        return "", "", None
    return (kind, "/".join(rest), value) if kind == "offset" else (rest[0], "/".join(rest[1:]), value)


def _take_member(
    name: str, value: bytes | None, epochs: dict[str, int], held: dict[str, set[tuple[bytes, int]]]
) -> None:
    if value is None:
        epochs.pop(name, None)
        held.pop(name, None)
        return
    row: dict[str, Any] = msgspec.msgpack.decode(value)
    epochs[name] = row["member"].get("epoch", 0)
    held[name] = {
        (topic, partition)
        for which in ("assigned", "revoking")
        for topic, partitions in row[which].items()
        for partition in partitions
    }


def _check_holders(shard_id: int, held: dict[str, set[tuple[bytes, int]]]) -> None:
    holders: dict[tuple[bytes, int], str] = {}
    for member, places in held.items():
        for place in places:
            other = holders.setdefault(place, member)
            require(
                other == member,
                "two-holders",
                f"{other} and {member} both hold partition {place[1]}",
                shard_id,
            )
