"""Mutants of transactions over shards of tables: locks, prepared rows, what is read, splits, clients' own ids."""

from typing import Any, Final

from antiphon.client.own_transactions import OwnProducer, OwnProducers
from antiphon.client.table_core import TableCore
from antiphon.client.table_steps import TableSteps
from antiphon.node import splits
from antiphon.node.split_copy import SplitCopy
from antiphon.partition.table_reads import TableReads
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, only
from antiphon.table import prepared_rows
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.folding import Folding
from antiphon.table.prepared_writes import PreparedWrites

_WORK: Final[dict[str, Any]] = only(operations_per_s=600, transfer_clients=4)

_OWN_WORK: Final[dict[str, Any]] = {**_WORK, "transfer_clients": 0, "own_transfer_clients": 2}

_COMMANDS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 6_000,
    "fault_every_ms": 300,
    "operator_weight": 1,
    **_WORK,
}

PREPARED_MUTANTS: Final = (
    ClusterMutant(
        "prepared-keys-are-read",
        "a key whose transaction is decided is read before its marker is there, while another shard has its marker",
        Edit(
            TableReads, "get", "if store.transactions.locked and request.consistency != LOCAL:", "if False:"
        ),
        options={**CALM, "fault_ms": 8_000, "delay_us": (200, 8_000), **_WORK},
        first_seed=4,
    ),
    ClusterMutant(
        "prepared-keys-are-written",
        "a plain write changes a key that a prepared transaction has locked",
        Edit(TableEvaluator, "_view", "if self.transactions.locked:", "if False:"),
        options={**CALM, "fault_ms": 4_000, **_WORK},
    ),
    ClusterMutant(
        "prepared-locks-forgotten",
        "a new leader of a shard does not know of the locks of transactions that are prepared there",
        Edit(
            PreparedWrites,
            "__init__",
            "self.transactions = state.transactions.copy()",
            "self.transactions = type(state.transactions)()",
        ),
        options={**_COMMANDS, "commands": "elect"},
        first_seed=13,
    ),
    ClusterMutant(
        "prepared-reads-not-validated",
        "what a transaction has read is not looked at again at its commit",
        Edit(TableSteps, "_prepare_tables", "await self._look_again()", "pass"),
        options={**CALM, "fault_ms": 4_000, **_WORK},
        quick=True,
        first_seed=5,
    ),
    ClusterMutant(
        "prepared-reads-validated-early",
        "what a transaction has read is looked at before all of its locks are held",
        Edit(
            TableSteps,
            "_prepare_tables",
            "await self._prepare_all(groups)\n    await self._look_again()",
            "await self._look_again()\n    await self._prepare_all(groups)",
        ),
        options={**CALM, "fault_ms": 4_000, **_WORK, "delay_us": (2_000, 20_000), "transfer_clients": 8},
        first_seed=4,
    ),
    ClusterMutant(
        "prepared-lost-with-the-store",
        "a store that is opened, after a restart or from a snapshot, has nothing that was prepared",
        Edit(
            prepared_rows, "read_prepared", "PreparedTransactions(_stored(store))", "PreparedTransactions()"
        ),
        options={**CRASHES, **_WORK, "store_flush_every": 5},
    ),
    ClusterMutant(
        "prepared-commit-in-part",
        "a commit makes a row of the first change only",
        Edit(
            prepared_rows,
            "add_change",
            "return before if change.commit else []",
            "return before[:1] if change.commit else []",
        ),
        options={**CALM, **_WORK},
        quick=True,
    ),
    ClusterMutant(
        "prepared-abort-commits",
        "a replica that follows makes rows of what an aborted transaction has prepared",
        Edit(
            Folding,
            "_apply_in_transaction",
            "if change is None:",
            "if isinstance(change, prepared_rows.End):\n"
            "        change = change._replace(commit=True)\n"
            "    if change is None:",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "prepared-freeze-does-not-wait",
        "a split takes keys of a transaction that is prepared",
        Edit(
            splits,
            "append_entry",
            "isinstance(entry, Freeze) and evaluator.transactions.by_producer",
            "False",
        ),
        options={**_COMMANDS, "commands": "split"},
        first_seed=3,
    ),
    ClusterMutant(
        "prepared-is-copied-by-splits",
        "the new shard of a split takes what is prepared for rows",
        Edit(
            SplitCopy,
            "_follow",
            "self._ended(header, batch) if header.is_transactional else _changes(header, batch)",
            "_changes(header, batch)",
        ),
        options={**_COMMANDS, "commands": "split"},
        first_seed=4,
    ),
    ClusterMutant(
        "own-write-without-reads",
        "a transaction that is one request does not say what it has read",
        Edit(
            TableSteps,
            "_as_one_write",
            "OneWrite(self._table(tables.pop()).core, checks,",
            "OneWrite(self._table(tables.pop()).core, checks[:0],",
        ),
        options={**CALM, "fault_ms": 4_000, **_OWN_WORK},
        quick=True,
    ),
    ClusterMutant(
        "own-write-in-pieces",
        "a transaction that is one request is carried out operation by operation",
        Edit(TableCore, "together", "Together(ops, True)", "Together(ops)"),
        options={**CALM, "fault_ms": 4_000, **_OWN_WORK},
    ),
    ClusterMutant(
        "own-producer-lent-twice",
        "two transactions of a client at the same time have one transactional id",
        Edit(OwnProducers, "lend", "producer = self._free.pop()", "producer = self._free[-1]"),
        options={**CALM, "fault_ms": 4_000, **_OWN_WORK},
    ),
    ClusterMutant(
        "own-interrupted-goes-on",
        "after a step of a transaction was interrupted, the next transaction goes on under the same epoch",
        Edit(OwnProducer, "in_doubt", "self._identity = None", "pass"),
        options={**CALM, "fault_ms": 4_000, **_OWN_WORK},
        first_seed=4,
    ),
)
