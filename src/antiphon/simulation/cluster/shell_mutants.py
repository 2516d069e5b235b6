"""Mutants between listeners and replicas: the cluster's own logs, metadata, groups, readers, forwarding."""

from typing import Any, Final

from antiphon.kafka.groups.classic_groups import ClassicGroups
from antiphon.kafka.handlers import produce
from antiphon.log import producer_state
from antiphon.model.cluster import MetadataView
from antiphon.native.session import NativeSession
from antiphon.node.begun_requests import BegunRequest
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.node_gateway import NodeGateway
from antiphon.node.peers import PeerLink
from antiphon.partition.clients import PartitionClients
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.reads import PartitionReads
from antiphon.partition.waiting_readers import WaitingReaders
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, MOVES, TROUBLE, only

_INTRUDED: Final[dict[str, Any]] = {**CALM, **only(intruders=1, appenders=1, putters=1)}
_TAKEN: Final = Edit(PartitionClients, "append", "if state.shard_id == CLUSTER_SHARD_ID:", "if False:")

_INTERNAL: Final = (
    ClusterMutant(
        "node-clients-write-cluster-log",
        "clients may append to the cluster's own log",
        (_TAKEN,),
        options=_INTRUDED,
    ),
    ClusterMutant(
        "node-fold-stops-at-garbage",
        "clients may append to the cluster's own log, and what cannot be read there stops every voter",
        (
            _TAKEN,
            Edit(
                MetadataFold,
                "_passed_over",
                "self._metrics.metadata_unreadable += 1",
                "raise CorruptBatchError(reason)",
            ),
        ),
        options=_INTRUDED,
    ),
    ClusterMutant(
        "listener-writes-internal-tables",
        "clients of the native protocol may write to the cluster's own tables and topics",
        Edit(NodeGateway, "check_may_write", "if settings is not None and settings.internal:", "if False:"),
        options=_INTRUDED,
    ),
    ClusterMutant(
        "listener-produces-internal-topics",
        "clients of Kafka's protocol may produce to the cluster's own topics",
        Edit(produce, "_refuse_topic", "if is_internal(topic):", "if False:"),
        options=_INTRUDED,
    ),
)

_METADATA: Final = (
    ClusterMutant(
        "node-takes-older-metadata",
        "a node takes metadata that is older than what it knows",
        Edit(MetadataView, "apply", "delta.version < self.version or ", ""),
        options={**TROUBLE, "fault_every_ms": 200, "operator_weight": 20, "operations_per_s": 100},
        quick=True,
        first_seed=15,
    ),
)

_GROUPS: Final = (
    ClusterMutant(
        "listener-keeps-deposed-groups",
        "a node keeps a consumer group in memory when another one coordinates it, and goes on with it when it does again",
        (
            Edit(
                ClassicGroups,
                "_drop",
                "led.hosted.clear()",
                'self.__dict__.setdefault("left", {})[led.shard_id] = dict(led.hosted)\n    led.hosted.clear()',
            ),
            Edit(
                ClassicGroups,
                "_take_rows",
                "self._settle(self._host(led, group_id, kept))",
                "self._settle(self._host(led, group_id, kept))\n"
                '    led.hosted.update(self.__dict__.get("left", {}).get(led.shard_id, {}))',
            ),
        ),
        options={
            **CALM,
            **only(
                operations_per_s=60,
                fault_ms=12_000,
                fault_every_ms=1_200,
                internal_elect_weight=1,
                kafka_producers=1,
                kafka_members=5,
            ),
        },
        rare=True,
    ),
    ClusterMutant(
        "listener-takes-skipped-sequences",
        "a producer's batch is appended though one before it is missing",
        Edit(
            producer_state,
            "_check_normal",
            "if header.base_sequence != expected:",
            "if header.base_sequence < expected:",
        ),
        options={
            **MOVES,
            "fault_every_ms": 40,
            "pieces_ppm": 1_000_000,
            "appenders": 0,
            "putters": 0,
            "kafka_producers": 3,
        },
        rare=True,
    ),
)

_READERS: Final = (
    ClusterMutant(
        "node-wakes-watchers-at-append",
        "who follows a log is woken, and answered, by what is appended",
        (
            Edit(
                WaitingReaders,
                "wake",
                "ends.get(isolation, otherwise)",
                "state.log.log_end",
            ),
            Edit(
                PartitionReads,
                "_end_for",
                "state.stable_end",
                "log.log_end",
            ),
        ),
        options={**CALM, "watches": True},
    ),
    ClusterMutant(
        "node-wakes-watchers-before-applying",
        "who follows a table is woken before its store has what was committed",
        Edit(
            CommonActions,
            "_commit",
            "    if table is not None and folded is None:\n",
            "    state.high_watermark = high_watermark\n    self._clients._readers.wake(committed=True)\n"
            "    if table is not None and folded is None:\n",
        ),
        options={**CALM, "watches": True},
        quick=True,
    ),
)

_FORWARDED: Final = (
    ClusterMutant(
        "node-answers-forwarded-at-once",
        "what another node passes on is answered when it is appended, and not when it is committed",
        Edit(
            NativeSession,
            "_dispatch",
            "            HANDLERS[type(body)](exchange, request_id, body, payload)\n",
            "            passed_on = exchange.is_peers and type(body).__name__ == 'AppendBatch'\n"
            "            host = exchange.gateway.replicas.host(body.shard_id) if passed_on else None\n"
            "            base = host.log.log_end if passed_on else -1\n"
            "            HANDLERS[type(body)](exchange, request_id, body, payload)\n"
            "            if passed_on:\n"
            "                from antiphon.model.requests import Appended\n"
            "                exchange.reply(request_id, Appended(base, host.log.log_end, host.state.term))\n",
        ),
        profile="tarantool",
        options={
            **MOVES,
            "fault_every_ms": 60,
            "fault_lasts_ms": 600,
            "slow_weight": 2,
            "commit": "at_least(3)",
            "putters": 0,
            "appenders": 4,
        },
        first_seed=3,
    ),
)

_DIALLED: Final = (
    ClusterMutant(
        "node-waits-long-to-be-greeted",
        "a node waits for the greeting of one that it dialled until the kernel gives the connection up",
        Edit(PeerLink, "_connect", "await self._greeted.wait()", "pass"),
        options={**CRASHES, "fault_lasts_ms": 600, "power_weight": 20, "delay_us": (20_000, 60_000)},
    ),
)

_COMMANDS: Final = (
    ClusterMutant(
        "begun-commands-are-said-to-be-unknown",
        "a command is told that it was not begun when its coordinator ends, and its repeat fails with its own success",
        (
            Edit(
                BegunRequest,
                "dropped",
                "not self.repeatable and isinstance(error, NotLeaderError | NotReadyError)",
                "False",
            ),
        ),
        options={
            "principals": 0,
            "tenants": 0,
            "appenders": 1,
            "putters": 1,
            "bulk_writers": 0,
            "operator_weight": 3,
            "commands": "create",
            "fault_every_ms": 120,
            "fault_ms": 5_000,
        },
        quick=True,
        first_seed=293,
    ),
)

SHELL_MUTANTS: Final = (*_INTERNAL, *_METADATA, *_GROUPS, *_READERS, *_FORWARDED, *_DIALLED, *_COMMANDS)
