"""Mutants of the coordinator of transactions, in what it tells participants, and in offsets that are pending."""

from typing import Any, Final

from antiphon.client.producer import AsyncTransaction
from antiphon.coordination import transactions
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, only
from antiphon.transactions.coordinator import TransactionCoordinator
from antiphon.transactions.endings import Endings
from antiphon.transactions.pending_offsets import PendingOffsets

_WORK: Final[dict[str, Any]] = only(operations_per_s=400, kafka_transactors=3)

TRANSACTION_MUTANTS: Final = (
    ClusterMutant(
        "transactions-successor-forgets",
        "a node that takes over as the coordinator does not go on with the transactions that were decided",
        Edit(TransactionCoordinator, "_take_rows", "self._note(led, name, held, kept)", "pass"),
        options={**CRASHES, **_WORK},
        first_seed=3,
    ),
    ClusterMutant(
        "transactions-marker-before-decision",
        "participants are told of a decision before it is written, which fails now and then",
        Edit(
            TransactionCoordinator,
            "_write",
            "held.kept = None",
            "self._note(led, name, held, Kept(row, kept.version)); await asyncio.sleep(0.2)\n"
            "    if system.rng().random() < 0.1:\n"
            "        raise NotReadyError('it was not written')",
        ),
        options={**CRASHES, **_WORK},
        first_seed=4,
    ),
    ClusterMutant(
        "transactions-marker-turned",
        "a partition is told the opposite of what was decided",
        Edit(Endings, "_end_in_shard", "ending.commit,", "not ending.commit,"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-epoch-stays",
        "a producer that asks for a transactional id gets the epoch of the producer before it",
        (
            Edit(transactions, "_raised", "row.epoch + 1", "row.epoch"),
            Edit(transactions, "_fenced", "epoch=row.epoch + 1", "epoch=row.epoch"),
        ),
        options={**CALM, **_WORK},
        first_seed=3,
    ),
    ClusterMutant(
        "transactions-fenced-one-goes-on",
        "a producer that was fenced ends the transaction of the one that fenced it, when it asks for its next epoch",
        Edit(transactions, "_may_go_on", " and expected.epoch == row.epoch:", ":"),
        options={**CALM, **_WORK},
        first_seed=7,
    ),
    ClusterMutant(
        "transactions-epoch-stays-at-end",
        "a producer of the second version of Kafka's transactions keeps its epoch when its transaction ends",
        Edit(transactions, "end_and_raise", "epoch=row.epoch + 1", "epoch=row.epoch"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-join-replaces",
        "a partition that takes part by a batch puts those out that took part before",
        Edit(
            transactions,
            "join",
            "every_shard = tuple(sorted({*had.shards, *shards}))",
            "every_shard = tuple(sorted(shards or had.shards))",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-no-time-out",
        "a transaction whose producer is gone is never aborted",
        Edit(TransactionCoordinator, "_abort_overdue", "deadline_ms <= now_ms", "deadline_ms < 0"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-early-offsets",
        "offsets of a transaction are the group's before it is committed",
        Edit(
            PendingOffsets,
            "_add",
            "_key(group, producer.producer_id, at)",
            "row_key(group, at.topic, at.partition)",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-told-once",
        "a participant that does not answer is not told again",
        Edit(
            Endings,
            "carry_out",
            "left, reasons = await self._round(left)",
            "left, reasons = (await self._round(left))[:0] or ([], [])",
        ),
        options={**CRASHES, **_WORK},
        first_seed=2,
    ),
    ClusterMutant(
        "transactions-offsets-left-out",
        "the group's part of a transaction is told that it was aborted",
        Edit(Endings, "_end_in_group", "ending.number, ending.commit", "ending.number, False"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-sequence-stays",
        "a Python client sends each batch of a transaction under the sequence of the first one",
        Edit(AsyncTransaction, "_send_batch", "(sequence + len(items)) & SEQUENCE_MASK", "sequence"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "transactions-abort-commits",
        "a Python client that aborts has its transaction committed",
        Edit(
            AsyncTransaction,
            "_finish",
            "FinishTransaction(producer.name, *identity, commit)",
            "FinishTransaction(producer.name, *identity, True)",
        ),
        options={**CALM, **_WORK},
    ),
)
