"""Clients that write while backups are taken: each write to one shard is followed, once acknowledged, by one elsewhere."""

import threading
import time
from dataclasses import dataclass, field

import antiphon
from antiphon.errors import AntiphonError

TOPIC = "orders"
TABLE = "accounts"
SHARDS = 3


@dataclass
class Write:
    """One write. `acknowledged` 0: it is not known whether it was carried out."""

    text: str
    place: str
    began: float
    acknowledged: float = 0.0


@dataclass
class Load:
    """Runs until `stop`. Times are of this process's monotonic clock."""

    servers: str
    writes: list[Write] = field(default_factory=list)
    transactions: dict[str, bool] = field(default_factory=dict)  # text -> was its commit acknowledged?
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> "Load":
        for number in range(2):
            self._threads.append(threading.Thread(target=self._chain, args=(number,), daemon=True))
        self._threads.append(threading.Thread(target=self._transact, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, more: int) -> None:
        """Return when so many writes more were acknowledged."""
        wanted = self._count() + more
        deadline = time.monotonic() + 60
        while self._count() < wanted:
            assert time.monotonic() < deadline, "clients stand still"
            time.sleep(0.01)

    def _count(self) -> int:
        return sum(write.acknowledged > 0 for write in list(self.writes))

    def _chain(self, number: int) -> None:
        with antiphon.connect(self.servers) as db:
            topic, table = db.topic(TOPIC), db.table(TABLE)
            serial = 0
            while not self._stopped.is_set():
                serial += 1
                text = f"{number}:{serial}"
                place = TABLE if serial % 4 == 0 else f"{TOPIC}/{serial % SHARDS}"
                write = Write(text, place, time.monotonic())
                self.writes.append(write)
                try:
                    if place == TABLE:
                        table.put(f"key-{number}-{serial % 20}", text.encode())
                    else:
                        topic.append(text.encode(), shard=serial % SHARDS)
                except AntiphonError:
                    continue
                write.acknowledged = time.monotonic()

    def _transact(self) -> None:
        serial = 0
        with antiphon.connect(self.servers) as db, db.producer("loader") as producer:
            while not self._stopped.is_set():
                serial += 1
                text = f"t:{serial}"
                self.transactions[text] = False
                try:
                    with producer.begin() as transaction:
                        for shard in range(SHARDS):
                            transaction.append(TOPIC, text.encode(), shard=shard)
                        transaction.send_offsets("readers", {(TOPIC, 0): serial})
                except AntiphonError:
                    return
                self.transactions[text] = True
