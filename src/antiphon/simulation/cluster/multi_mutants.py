"""Mutants where every replica writes."""

from typing import Any, Final

from antiphon.partition import multi_members, multi_opening
from antiphon.partition.multi_writer_actions import MultiWriterActions
from antiphon.replication import origins
from antiphon.replication.messages import NodeId
from antiphon.replication.multi_messages import Relay
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_intake import IntakeSide
from antiphon.replication.multi_writer_relay import RelaySide
from antiphon.replication.origin_history import OriginEntry
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.origin_regain import Regain
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, RESETS, TROUBLE, only

_WRITERS: Final = only(multi_tables=True, appenders=1, fault_ms=3_000)
_CALM: Final = {**CALM, **_WRITERS}
_CRASHES: Final = {**CRASHES, **_WRITERS}
# Nodes come back where clients reach them and the others do not.
_ALONE: Final = {
    **_CALM,
    "appenders": 0,
    "fault_ms": 12_000,
    "fault_every_ms": 400,
    "fault_lasts_ms": 2_000,
    "cut_weight": 3,
    "lost_files_weight": 2,
}

_NO_ORDER: Final = Edit(
    OriginLog, "append", "if not 0 <= origin <= ORIGINS_MAX or lsn != history.lsns[origin] + 1:", "if False:"
)


def _take_everything(_self: IntakeSide, message: Relay) -> tuple[list[OriginEntry], bool]:
    return list(message.entries), False


def _origin_of_the_node(table: origins.OriginTable, node: NodeId, _disk: str) -> int:
    return next((place for place, row in enumerate(table, 1) if row[0] == node), origins.NONE)


def _mutant(
    name: str,
    description: str,
    *patches: tuple[Any, str, Any] | Edit,
    options: dict[str, Any],
    **more: Any,
) -> ClusterMutant:
    return ClusterMutant(name, description, patches, profile="multi", options=options, **more)


_SYNCS: Final = (
    _mutant(
        "multi-ack-before-sync",
        "a write is committed when it is handed to the disk",
        Edit(
            MultiWriterActions,
            "take_batch",
            "    self._marks.note(1)\n",
            "    clients, log = self._common._clients, self._driver.state.log\n"
            "    self._services.turn.for_shard(lambda: clients.committed(log.log_end))\n"
            "    self._marks.note(1)\n",
        ),
        options=_CALM,
        quick=True,
    ),
    _mutant(
        "multi-relay-before-sync",
        "entries are relayed while they are on their way to the disk",
        Edit(RelaySide, "send_next", "self._log.durable_end", "self._log.log_end"),
        options=_CALM,
    ),
    _mutant(
        "multi-acknowledges-before-sync",
        "an applier acknowledges what is not on its disk",
        Edit(
            IntakeSide,
            "_acknowledge",
            "while one.acks and one.acks[0][0] <= self._log.persisted_id:",
            "while one.acks:",
        ),
        Edit(IntakeSide, "_acknowledge", "self._log.durable_clock", "self._log.history.clock()"),
        options=_CALM,
    ),
)

_ORDER: Final = (
    _mutant(
        "multi-duplicates-taken",
        "what comes by two paths is taken twice",
        (IntakeSide, "_choose", _take_everything),
        _NO_ORDER,
        options={**RESETS, **_WRITERS},
        quick=True,
    ),
    _mutant(
        "multi-gaps-taken",
        "the next entry that comes is taken, whatever is missing before it",
        Edit(IntakeSide, "_choose", "if lsn > have + 1:", "if False:"),
        Edit(IntakeSide, "_choose", "if chain != agreed:", "if False:"),
        _NO_ORDER,
        options={**RESETS, **_WRITERS, "disk_full_weight": 2, "fault_lasts_ms": 200},
        quick=True,
    ),
    _mutant(
        "multi-lsn-reused",
        "a restarted replica numbers from before its last entry on",
        Edit(
            MultiWriterReplica,
            "__init__",
            "self.log = OriginLog(index, end)",
            "own = origins[node_id]\n"
            "    clock = tuple(lsn - 1 if origin == own and lsn else lsn for origin, lsn in enumerate(end.clock))\n"
            "    self.log = OriginLog(index, end._replace(clock=clock))",
        ),
        options=_CRASHES,
    ),
)

_TABLES: Final = (
    _mutant(
        "multi-tie-by-arrival",
        "of two changes at the same time, the one that arrives later wins",
        Edit(
            multi_opening,
            "rule_named",
            "    return _rules[name]\n",
            "    return ConflictRule(lambda old, new: old if old.version[3] > new.version[3] else new, forgets=True)\n",
        ),
        options=_CALM,
    ),
)

_LOGS: Final = (
    _mutant(
        "multi-trims-without-asking",
        "a log is trimmed by its own watermark, whoever has not got it yet",
        Edit(RelaySide, "common_offset", "stable = self.stable_clock()", "stable = self._log.durable_clock"),
        options={**TROUBLE, **_WRITERS, "appenders": 3, "trim_weight": 12, "fault_every_ms": 100},
    ),
)

_LOSSES: Final = (
    _mutant(
        "multi-old-origin-on-new-disk",
        "a node whose disk was replaced writes as the origin that it was",
        (origins, "origin_of", _origin_of_the_node),
        (multi_members, "origin_of", _origin_of_the_node),
        options={**_ALONE, "nodes": 4, "lost_files_weight": 0, "new_disk_weight": 2},
        rare=True,
    ),
    _mutant(
        "multi-writes-before-regaining",
        "a replica whose log was damaged writes on at once",
        (Regain, "is_done", lambda _self, _origin: True),
        options=_ALONE,
    ),
)

MULTI_MUTANTS: Final = (*_SYNCS, *_ORDER, *_TABLES, *_LOGS, *_LOSSES)
