"""An operator: creates the topic, and now and then gives a command, as an entry of the list of faults."""

from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError
from antiphon.replication.commit_rule import CommitKind
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import Role
from antiphon.simulation.scheduler import MILLISECOND
from antiphon.wire.requests import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DrainNode,
    ElectLeader,
    MoveReplica,
    Rebalance,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.coordination.coordinator import CommandRequest
    from antiphon.simulation.coordinator_host import CoordinatorHost, Outcome
    from antiphon.simulation.faults import Fault
    from antiphon.simulation.hosted import Hosted
    from antiphon.simulation.truth import ShardTruth
    from antiphon.simulation.world import World

TOPIC: Final = "flights"
EVERY_MS: Final = 100
DELETE_PPM: Final = 20_000
Facts = dict[str, Any]


class Admin:
    """Gives commands to whichever node coordinates, or to the leader of a shard whose replicas vote."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._commands: dict[str, Callable[[Fault], None]] = {
            "elect": lambda fault: self._command(ElectLeader(fault.shard, fault.nodes[0])),
            "move": lambda fault: self._command(MoveReplica(fault.shard, *fault.nodes)),
            "replicas": lambda fault: self._command(AlterTopic(TOPIC, replicas=int(fault.what))),
            "drain": lambda fault: self._command(DrainNode(fault.nodes[0])),
            "undrain": lambda fault: self._command(DrainNode(fault.nodes[0], cancel=True)),
            "rebalance": lambda _: self._command(Rebalance()),
            "commit": lambda fault: self._command(AlterTopic(TOPIC, config={"commit": fault.what})),
            "delete": lambda _: self._command(DeleteTopic(TOPIC)),
            "voters": self._change_voters,
            "transfer": self._transfer,
        }
        if world.options.has_coordinator:
            self._again()

    # -- founding ---------------------------------------------------------------------------------------------------

    def _again(self) -> None:
        self._world.scheduler.after(self._random.randrange(1, 2 * EVERY_MS) * MILLISECOND, self._found)

    def _found(self) -> None:
        """Create the topic, then its other shards, one after the other; again when it was deleted."""
        shards = len(self._world.client_shards())
        options, topic = self._world.options, self._world.topic
        if shards == 0:
            is_first = len(self._world.checker.shards) <= 1
            config = topic.config if is_first else topic.config_anywhere
            replicas = options.replicas if is_first else 0  # as many as there are nodes that are not drained
            self._command(
                CreateTopic(TOPIC, shards=1, replicas=replicas, profile=topic.profile, config=config)
            )
        elif shards < options.shards:
            self._command(AlterTopic(TOPIC, shards=shards + 1))
        self._again()

    # -- commands ---------------------------------------------------------------------------------------------------

    def draw(self, random: Random) -> Facts | None:
        """A command as the facts of a `Fault`; None when there is nothing to command yet."""
        shards = self._world.client_shards()
        if not shards:
            return None
        truth = self._world.checker.shards[random.choice(shards)]
        if not self._world.options.has_coordinator:
            return self._draw_of_voters(truth, random)
        if random.randrange(1_000_000) < DELETE_PPM:
            return {"kind": "delete"}
        nodes = [node.node_id for node in self._world.nodes]
        voters = truth.members.voters
        others = [node for node in nodes if node not in voters]
        menu: list[Facts] = [
            {"kind": "elect", "shard": truth.shard, "nodes": (random.choice((-1, *voters)),)},
            {"kind": "commit", "what": random.choice(self._rules(len(voters)))},
            {"kind": "replicas", "what": str(random.randint(1, min(5, len(nodes))))},
            {"kind": "drain", "nodes": (random.choice(nodes),)},
            {"kind": "undrain", "nodes": (random.choice(nodes),)},
            {"kind": "rebalance"},
        ]
        if others:
            pair = (random.choice(voters), random.choice(others))
            menu += 2 * [{"kind": "move", "shard": truth.shard, "nodes": pair}]
        return random.choice(menu)

    def _rules(self, replicas: int) -> tuple[str, ...]:
        most = f"at_least({replicas // 2 + 1})"
        if self._world.options.commit == "live":
            return ("live", "live", "quorum")
        return ("quorum", most, f"at_least({replicas})")

    def _draw_of_voters(self, truth: "ShardTruth", random: Random) -> Facts:
        nodes = [node.node_id for node in self._world.nodes]
        if random.random() < 0.4:
            return {"kind": "transfer", "shard": truth.shard, "nodes": (random.choice(nodes),)}
        voters = random.sample(nodes, random.choice(self._sizes(len(nodes))))
        rest = [node for node in nodes if node not in voters]
        learners = random.sample(rest, random.randint(0, len(rest)))
        return {
            "kind": "voters",
            "shard": truth.shard,
            "nodes": tuple(sorted(voters)),
            "others": tuple(sorted(learners)),
        }

    def _sizes(self, nodes: int) -> list[int]:
        """How many voters there may be, so that the rule is kept and none of its commits can be lost."""
        rule = self._world.topic.replication.commit
        if rule.kind is not CommitKind.AT_LEAST:
            return [1, 2, 3, 3, min(5, nodes)]
        return [count for count in range(1, nodes + 1) if rule.k <= count < 2 * rule.k]

    def carry_out(self, fault: "Fault") -> None:
        """Give the command."""
        self._world.trace.tell("operator", fault.shard, fault.kind, fault.nodes, fault.others, fault.what)
        self._commands[fault.kind](fault)

    # -- to the coordinator -----------------------------------------------------------------------------------------

    def _command(self, request: "CommandRequest") -> None:
        host = self._coordinator()
        if host is not None:
            host.command(request, self._answered)

    def _coordinator(self) -> "CoordinatorHost | None":
        hosts = [
            node.agent.coordinator for node in self._world.nodes if node.agent is not None and not node.paused
        ]
        active = [host for host in hosts if host is not None and host.coordinator is not None]
        return active[-1] if active else None

    def _answered(self, outcome: "Outcome") -> None:
        self._world.trace.note("command", -1, type(outcome).__name__, str(outcome))

    # -- to a leader that was voted for ------------------------------------------------------------------------------

    def _leader(self, shard: int) -> "tuple[Hosted, RaftReplica] | None":
        for node in self._world.nodes:
            hosted = node.hosted.get(shard)
            if hosted is not None and not node.paused and hosted.role is Role.LEADER:
                replica = hosted.replica
                if isinstance(replica, RaftReplica) and replica.ready:
                    return hosted, replica
        return None

    def _change_voters(self, fault: "Fault") -> None:
        found = self._leader(fault.shard)
        if found is None:
            return
        hosted, replica = found
        files = hosted.truth.files
        if any(one.unsound for one in files.values()):
            return  # nobody changes the members of a shard while one of its replicas is being mended
        ready = [node for node in fault.nodes if node in files and not files[node].joining]
        voters = ready if len(ready) == len(fault.nodes) else replica.members.voters
        wanted = (*fault.nodes, *fault.others)  # who is to vote listens first, until it has caught up
        learners = [node for node in wanted if node not in voters]
        try:
            hosted.run(replica.propose_members(voters, learners))
        except AntiphonError as error:
            self._world.trace.note("command", fault.shard, type(error).__name__, str(error))
            return
        for node_id in wanted:
            self._world.nodes[node_id].join(fault.shard)

    def _transfer(self, fault: "Fault") -> None:
        found = self._leader(fault.shard)
        if found is None:
            return
        hosted, replica = found
        try:
            hosted.run(replica.transfer_leadership(fault.nodes[0]))
        except AntiphonError as error:
            self._world.trace.note("command", fault.shard, type(error).__name__, str(error))
