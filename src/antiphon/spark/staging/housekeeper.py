"""The cluster's own hand on staged epochs: finishes those whose driver died, and takes away what nobody needs.

Every node runs one as a thread; only that of the node that leads `__epochs` does anything. While no such table exists a look
is one request for metadata. A look

1. forgets what tasks staged for epochs that were decided since, or that nobody touched for a day;
2. finishes epochs that are decided, not applied, and left alone for `wait_s`: as their driver would have;
3. trims `__staged` below everything that an epoch may still need;
4. now and then removes old rows: of writes without a name after an hour, of queries a year after their last epoch. (The last
   row of a query is what tells a repeat of its last epoch from a new one.)

Two that do this at once, and a driver besides, are harmless: see `commit`.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from antiphon.client.account import NOBODY, Account, use_account
from antiphon.client.addresses import Address
from antiphon.client.blocking import Cluster
from antiphon.client.tls import tls_of, use_tls
from antiphon.errors import AntiphonError, CorruptBatchError, UnknownTopicError
from antiphon.model import internal
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import Trimmed, TrimShard
from antiphon.model.rows import Row

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing
    from antiphon.spark.staging.epochs import Epoch, Epochs

WAIT_VARIABLE: Final = "ANTIPHON_ROLL_FORWARD_S"
WAIT_S_DEFAULT: Final = 60.0
LOOK_S_MAX: Final = 30.0
TIMEOUT_MS: Final = 30_000
HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
OPEN_MS_MAX: Final = DAY_MS  # since it was refreshed
ONCE_MS_MAX: Final = HOUR_MS  # since it was applied
ROW_MS_MAX: Final = 365 * DAY_MS
SWEEP_S: Final = 3600.0
TOLD_MAX: Final = 1_000  # rows that cannot be read and are told of, each once


class Look(NamedTuple):
    """What one look did."""

    finished: int = 0
    failed: int = 0
    removed: int = 0  # rows
    trimmed: int = 0  # shards


def start(
    node_id: int, address: Address, account: Account = NOBODY, tls: "Dialing | None" = None
) -> Callable[[], None]:
    """Begin to look after the cluster, from the process of a node that listens at `address`. `account`: to log in with.
    `tls`: how to connect; None: without TLS.

    Returns what ends that. A look that is underway then is not waited for; the thread does not keep the process.
    """
    try:
        wait_s = float(os.environ.get(WAIT_VARIABLE, WAIT_S_DEFAULT))
    except ValueError:
        wait_s = WAIT_S_DEFAULT
    stopped = threading.Event()
    if wait_s > 0:
        keeper = Housekeeper([address], node_id, wait_s=wait_s)
        threading.Thread(
            target=keeper.run, args=(stopped, account, tls), name="staging housekeeper", daemon=True
        ).start()
    return stopped.set


class Housekeeper:
    """See the module."""

    def __init__(
        self, servers: Sequence[Address], node_id: int | None, *, wait_s: float = WAIT_S_DEFAULT
    ) -> None:
        """`node_id`: look only while this node leads; None: always."""
        self._servers = tuple(servers)
        self._node_id = node_id
        self._wait_ms = int(wait_s * 1000)
        self._look_s = min(LOOK_S_MAX, wait_s / 2)
        self._trimmed: dict[tuple[int, int], int] = {}  # (shard id, node) -> where its log begins
        self._swept_s: float | None = None
        self._is_sure = True  # of what is needed, in this look
        self._told: set[bytes] = set()  # keys of rows that cannot be read
        self._log = structlog.get_logger()

    def run(self, stopped: threading.Event, account: Account = NOBODY, tls: "Dialing | None" = None) -> None:
        """Look again and again, until `stopped`."""
        use_account(account)
        dialing = tls or tls_of(False)
        if dialing is not None:
            use_tls(dialing)
        with Cluster(self._servers, TIMEOUT_MS, account=None if account.is_empty else account) as cluster:
            while not stopped.wait(self._look_s):
                try:
                    self.look(cluster)
                except (AntiphonError, OSError) as error:
                    self._log.info("staging_not_looked_after", reason=str(error))
                except Exception as error:  # noqa: BLE001 - a bug here must not leave the cluster without this hand
                    self._log.error("staging_failed", exc_info=error)

    def look(self, cluster: Cluster) -> Look:
        """One look; raises what `Cluster.call` raises."""
        meta = cluster.metadata()
        table, staged = _internal(meta)
        if table is None or staged is None:
            return Look()
        if self._node_id is not None and table.shards[0].leader != self._node_id:
            return Look()
        from antiphon.spark.staging.epochs import Epochs

        epochs = Epochs(cluster, table)
        # The ends come first: what is staged by an epoch that is not seen below begins after them. Open epochs come before
        # pending ones: an epoch that is decided in between is seen twice, and not missed.
        needed = epochs.ends([shard.shard_id for shard in staged.shards])
        self._is_sure = True
        forgotten = self._open(epochs, needed)
        found = self._pending(cluster, epochs, needed)
        trimmed = self._trim(cluster, staged.shards, needed) if self._is_sure else 0
        return found._replace(removed=found.removed + forgotten + self._sweep(epochs), trimmed=trimmed)

    # -- epochs -------------------------------------------------------------------------------------------------

    def _pending(self, cluster: Cluster, epochs: "Epochs", needed: dict[int, int]) -> Look:
        from antiphon.spark.staging.epochs import PENDING

        found = Look()
        for row in epochs.scan(PENDING):
            with self._passed_over(row):
                one = self._pending_row(cluster, epochs, row, needed)
                found = Look(*map(sum, zip(found, one, strict=True)))
        return found

    def _pending_row(self, cluster: Cluster, epochs: "Epochs", row: Row, needed: dict[int, int]) -> Look:
        from antiphon.spark.staging.epochs import now_ms, pending_since_ms, split_key

        _, target_id, query = split_key(row.key)
        stored = epochs.newest(target_id, query)
        if stored is None or stored.epoch.is_applied:
            return Look(removed=epochs.remove(row))
        is_left_alone = now_ms() - pending_since_ms(row) >= self._wait_ms
        if is_left_alone and self._finish(cluster, epochs, stored.epoch):
            return Look(finished=1)
        _need(needed, stored.epoch.oldest)
        return Look(failed=int(is_left_alone))

    @contextmanager
    def _passed_over(self, row: Row) -> Iterator[None]:
        """Go on with the other rows where one cannot be read; nothing is trimmed then, since it may need what is staged."""
        try:
            yield
        except CorruptBatchError as error:
            self._is_sure = False
            if row.key not in self._told and len(self._told) < TOLD_MAX:
                self._told.add(row.key)
                self._log.error("epoch_row_not_readable", key=row.key[:200], reason=str(error))

    def _finish(self, cluster: Cluster, epochs: "Epochs", epoch: "Epoch") -> bool:
        """Apply an epoch that was left alone; False: it did not work, and will be tried again."""
        from antiphon.spark.staging.commit import Place, finish_epoch

        epochs.working(epoch.target_id, epoch.query)
        stored = epochs.newest(epoch.target_id, epoch.query)
        if stored is None or stored.epoch.is_applied:
            return True
        try:
            finish_epoch(Place(self._servers, TIMEOUT_MS), cluster, epochs, stored)
        except UnknownTopicError as error:
            self._log.warning("epoch_dropped", epoch=str(epoch), reason=error.message)
            epochs.applied(stored)  # there is nothing any more that it could be applied to
        except (AntiphonError, OSError) as error:
            self._log.warning("epoch_not_finished", epoch=str(epoch), reason=str(error))
            return False
        else:
            self._log.info("epoch_finished", epoch=str(epoch), target=epoch.target, rows=epoch.rows)
        return True

    def _open(self, epochs: "Epochs", needed: dict[int, int]) -> int:
        from antiphon.spark.staging.epochs import OPEN

        removed = 0
        for row in epochs.scan(OPEN):
            with self._passed_over(row):
                removed += self._open_row(epochs, row, needed)
        return removed

    def _open_row(self, epochs: "Epochs", row: Row, needed: dict[int, int]) -> int:
        from antiphon.spark.staging.epochs import now_ms, opened_of, split_key

        _, target_id, query = split_key(row.key)
        opened = opened_of(row)
        stored = epochs.newest(target_id, query)
        is_decided = stored is not None and stored.epoch.number >= opened.number
        if is_decided or now_ms() - opened.refreshed_ms > OPEN_MS_MAX:
            if epochs.remove(row):
                return 1
            opened = opened_of(row)  # it was refreshed meanwhile
        _need(needed, opened.starts)
        return 0

    def _sweep(self, epochs: "Epochs") -> int:
        """Remove rows that nobody will ask for, every hour."""
        from antiphon.spark.staging.epochs import HEAD, now_ms, stored_of

        now_s = time.monotonic()
        if self._swept_s is not None and now_s - self._swept_s < SWEEP_S:
            return 0
        self._swept_s = now_s
        removed = 0
        for row in epochs.scan(HEAD):
            with self._passed_over(row):
                epoch = stored_of(row).epoch
                age_ms = now_ms() - epoch.applied_ms
                if epoch.is_applied and age_ms > (ONCE_MS_MAX if epoch.once else ROW_MS_MAX):
                    removed += epochs.remove(row)
        return removed

    # -- trimming -----------------------------------------------------------------------------------------------

    def _trim(self, cluster: Cluster, shards: Sequence[ShardMeta], needed: dict[int, int]) -> int:
        """Let each replica's log begin where something is needed; one that is away is asked at a later look."""
        trimmed = 0
        for shard in shards:
            shard_id, before = shard.shard_id, needed[shard.shard_id]
            for node in shard.everybody:
                if before <= self._trimmed.get((shard_id, node), 0):
                    continue
                try:
                    reply = cluster.ask(node, TrimShard(shard_id, before, internal=True)).body
                except (AntiphonError, OSError) as error:
                    self._log.info("staged_not_trimmed", shard=shard_id, node=node, reason=str(error))
                    continue
                if isinstance(reply, Trimmed):
                    self._trimmed[shard_id, node] = reply.log_start
                    trimmed += node == shard.leader
        return trimmed


def _internal(meta: ClusterMeta) -> tuple[TopicMeta | None, TopicMeta | None]:
    """`__epochs` and `__staged`."""
    table = staged = None
    for topic in meta.topics:
        if topic.name == internal.EPOCHS_TABLE:
            table = topic
        elif topic.name == internal.STAGED_TOPIC:
            staged = topic
    return table, staged


def _need(needed: dict[int, int], starts: dict[int, int]) -> None:
    for shard_id, start in starts.items():
        if shard_id in needed:
            needed[shard_id] = min(needed[shard_id], start)
