"""Mutants of clients."""

from typing import Final

from antiphon.client.log_backed_store_aio import AsyncLogBackedStore
from antiphon.client.pipeline import ShardPipeline
from antiphon.client.table_writer import TableWriter
from antiphon.client.topic_reads import TopicReads
from antiphon.client.topic_writer import TopicWriter
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, LONG_CUTS, RESETS

_AGAIN: Final = {**LONG_CUTS, "topic_shards": 2, "appenders": 4, "putters": 0, "operations_per_s": 100}
_LEDGER: Final = {**CALM, "ledger_keepers": 3, "putters": 0, "appenders": 0}

CLIENT_MUTANTS: Final = (
    ClusterMutant(
        "client-tries-again-as-new",
        "an append that a program tries again goes by another producer id",
        Edit(TopicWriter, "_send_again", "request.producer_id)", "request.producer_id ^ (1 << 40))"),
        options={**_AGAIN, "tries_again": True},
        quick=True,
    ),
    ClusterMutant(
        "client-follows-some-shards",
        "a follow of a whole topic leaves the last shard out",
        Edit(TopicReads, "_of_all", "for span in bounded]", "for span in bounded[:-1]]"),
        options={**CALM, "topic_shards": 2, "putters": 0, "followers": True, "whole_readers": True},
    ),
    ClusterMutant(
        "client-repeats-as-new",
        "a client that repeats an append does so under a new producer id",
        Edit(
            ShardPipeline,
            "_try_round",
            "fresh = self._before_resend()",
            "fresh = bool(self._before_resend() or self._sent)",
        ),
        options=RESETS,
        quick=True,
    ),
    ClusterMutant(
        "client-sends-no-sequence",
        "a client's appends carry no producer and no sequence",
        (
            Edit(TopicWriter, "_encode", "producer_id=self.producer_id", "producer_id=-1"),
            Edit(TopicWriter, "_encode", "producer_epoch=0", "producer_epoch=-1"),
            Edit(TopicWriter, "_encode", "base_sequence=request.sequence", "base_sequence=-1"),
        ),
        options=RESETS,
    ),
    ClusterMutant(
        "client-renumbers-writes",
        "a client that repeats a table's write gives it a new sequence",
        Edit(
            TableWriter,
            "_before_resend",
            "[request for request in self._sent if request.failure is not None]",
            "list(self._sent)",
        ),
        options={**RESETS, "putters": 4, "appenders": 0},
        quick=True,
    ),
    ClusterMutant(
        "client-ledger-takes-others-for-own",
        "a log-backed store whose append was refused takes what is at its place for its own",
        Edit(AsyncLogBackedStore, "_take_in", "(MARK, batch.mark) in record.headers", "True"),
        options=_LEDGER,
    ),
    ClusterMutant(
        "client-ledger-refuses-at-once",
        "a log-backed store refuses an operation without asking whether it has read the log to its end",
        Edit(AsyncLogBackedStore, "_try", "return None if end == batch.expected else end", "return None"),
        options=_LEDGER,
    ),
)
