"""Mutants of traces: spans that do not end, and spans under what they do not belong to."""

from typing import Any, Final

from antiphon.client.table_reader import TableReader
from antiphon.native.exchange import Exchange
from antiphon.native.session import NativeSession
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.single_writer_actions import SingleWriterActions
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS

_CALM: Final[dict[str, Any]] = {**CALM, "traced": True, "operations_per_s": 200}

_CUT: Final[dict[str, Any]] = {**CUTS, "traced": True, "operations_per_s": 200}

TRACE_MUTANTS: Final = (
    ClusterMutant(
        "traces-request-never-ends",
        "a node's span of a request does not end with the answer",
        Edit(Exchange, "reply", 'span.end(body.code if type(body) is Failure else "")', "pass"),
        options=_CALM,
        quick=True,
    ),
    ClusterMutant(
        "traces-end-at-the-border",
        "a node does not read to which trace a request of a client belongs",
        Edit(NativeSession, "received", "trace = trace_of(frame.header, body)", "trace = None"),
        options=_CALM,
        quick=True,
    ),
    ClusterMutant(
        "traces-stay-current",
        "what a node does after a request that is traced it takes for a part of it",
        Edit(NativeSession, "_take_traced", "tracing.current = None", "pass"),
        options=_CALM,
        quick=True,
    ),
    ClusterMutant(
        "traces-sent-with-other-entries",
        "the trace of one shard's entries goes to followers with those of other shards, too",
        Edit(SingleWriterActions, "_send", "tracing.outgoing = None", "pass"),
        options=_CALM,
        first_seed=13,
    ),
    ClusterMutant(
        "traces-of-deposed-leaders-stay-open",
        "spans of entries whose leader was deposed do not end",
        Edit(CommonActions, "send_clients_away", "if self._state.traces is not None:", "if False:"),
        options=_CUT,
        first_seed=6,
    ),
    ClusterMutant(
        "traces-lost-by-reads-that-are-repeated",
        "a read that its client has to send again is no part of its trace any more",
        Edit(TableReader, "_ask", 'trace=trace_among(items) or ""', 'trace=""'),
        options=_CUT,
        first_seed=19,
    ),
)
