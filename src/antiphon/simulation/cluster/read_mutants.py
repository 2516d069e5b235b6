"""Mutants of reads, watches and conditions, each for a promise that no other mutant breaks."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from antiphon.client import topic_reads
from antiphon.client.watch import Watch
from antiphon.errors import AntiphonError
from antiphon.model import past
from antiphon.model.requests import TableRows, TableScan
from antiphon.partition.table_reads import Admit, TableReads
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, MOVES, SNAPSHOTS
from antiphon.table.evaluator import TableEvaluator

_SCAN: Final = TableReads.scan
_PAUSE_S: Final = 0.002
_GROUPS: Final[dict[str, Any]] = {**CALM, "appenders": 0, "putters": 0, "transactions": True}


def _scan_in_pieces(
    reads: TableReads, request: TableScan, done: Callable[[Any], None], admit: Admit | None = None
) -> None:
    """`TableReads.scan` that lets others write between its first row and the rest."""

    def go_on(first: Any) -> None:
        if not isinstance(first, TableRows) or not first.more:
            done(first)
            return
        row = first.rows[-1]
        rest = msgspec.structs.replace(request, start=(row.key if row is not None else b"") + b"\x00")

        def finish() -> None:
            try:
                _SCAN(reads, rest, joined, admit)
            except AntiphonError as error:
                done(error)

        def joined(found: Any) -> None:
            rows = TableRows(first.rows + found.rows, found.more) if isinstance(found, TableRows) else found
            done(rows)

        asyncio.get_running_loop().call_later(_PAUSE_S, finish)

    _SCAN(reads, msgspec.structs.replace(request, limit=1), go_on, admit)


_PAST: Final[dict[str, Any]] = {"appenders": 0, "putters": 3, "past_readers": 2}

_IN_PIECES: Final = ((TableReads, "scan", _scan_in_pieces),)

READ_MUTANTS: Final = (
    ClusterMutant(
        "node-scan-in-pieces",
        "a scan lets others write between its rows",
        _IN_PIECES,
        options={**CALM, "appenders": 0, "putters": 4, "scans": True},
    ),
    ClusterMutant(
        "node-scan-sees-half-a-transaction",
        "a scan lets transactions change a group of keys while it reads them",
        _IN_PIECES,
        options=_GROUPS,
    ),
    ClusterMutant(
        "client-watches-new-shards-early",
        "a watch follows a shard that was split off as soon as it hears of it, and not where its keys were released",
        Edit(
            Watch,
            "_follow_log",
            "            if changes:\n",
            "            await self._cluster.refresh()\n"
            "            for shard in (await self._resolve()).shards:\n"
            "                self._begin(shard.shard_id, shard.own_start)\n"
            "            if changes:\n",
        ),
        options={
            **MOVES,
            "appenders": 0,
            "putters": 4,
            "watches": True,
            "slow_watchers": True,
            "fault_every_ms": 100,
        },
        rare=True,
    ),
    ClusterMutant(
        "client-reads-on-at-log-end",
        "a reader goes on at the end of the leader's log, and not behind what it was given",
        Edit(topic_reads, "read_batches", "at = header.next_offset", "at = reply.log_end"),
        options={**CALM, "putters": 0, "appenders": 4, "followers": True},
    ),
    ClusterMutant(
        "node-conditions-see-committed-only",
        "conditions are judged by what is committed, and not by what is appended as well",
        Edit(
            TableEvaluator,
            "_view",
            "elif key in overlay:\n            view[key] = overlay[key]\n        elif key in settled:",
            "elif key in settled:",
        ),
        options=_GROUPS,
    ),
    ClusterMutant(
        "node-takes-every-check",
        "a check of a key's version passes whatever the version is",
        Edit(
            TableEvaluator,
            "_check",
            "if op.expected_version != (ABSENT if current is None else current[0]):",
            "if op.expected_version < ABSENT:",
        ),
        options=_GROUPS,
    ),
    ClusterMutant(
        "node-refuses-by-the-uncommitted",
        "a transaction is refused because of changes that are not committed yet, and may never be",
        Edit(TableEvaluator, "_none_of_it", "self._appended_end if self._overlay else 0", "0"),
        options={**_GROUPS, "fault_every_ms": 100, "slow_weight": 1},
    ),
    ClusterMutant(
        "client-past-has-later-rows",
        "a read as of an offset shows rows that were made after it",
        Edit(past, "_taken_back", "rows.pop(key, None)", "pass"),
        options={**CALM, **_PAST},
    ),
    ClusterMutant(
        "client-past-keeps-what-was-handed-over",
        "a read as of an offset shows keys that the shard had handed to another one by then",
        Edit(past, "_forward", "key_hash(key) <= last", "True"),
        options={**MOVES, **_PAST, "commands": "split"},
        first_seed=2,
    ),
    ClusterMutant(
        "client-past-takes-lost-for-absent",
        "a read as of an offset says that a key was not there, where its past is gone from the log",
        Edit(past, "_taken_back", "if before is None and not _is_new(change):", "if False:"),
        options={**SNAPSHOTS, **_PAST},
    ),
)
