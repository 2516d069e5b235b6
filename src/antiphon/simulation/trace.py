"""What happened in a run: a hash over all of it, and the last part of it in words."""

from collections import deque
from hashlib import blake2b
from typing import Any

import msgspec

from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import Entry
from antiphon.simulation.scheduler import Scheduler

KEPT_EVENTS = 4_000
STORY_EVENTS = 2_000

Event = tuple[int, str, int, tuple[Any, ...]]  # time in ns, kind, shard, facts


def _plain(value: Any) -> Any:
    return repr(value)


class Trace:
    """Takes note of every event.

    Two runs with equal `digest()` have delivered the same messages, syncs and faults at the same instants in the same
    order. Only the last `KEPT_EVENTS` events are kept for reading; they are put into words only when somebody asks.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hash = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
        self._kept: deque[tuple[int, int, str, int, tuple[Any, ...]]] = deque(maxlen=KEPT_EVENTS)
        self.counts: dict[str, int] = {}  # events of each kind
        self.told: deque[Event] = deque(maxlen=STORY_EVENTS)  # what a story is made of

    def tell(self, kind: str, shard: int, *facts: Any) -> None:
        """Record an event that a reader of the whole run wants to know of."""
        self.note(kind, shard, *facts)
        self.told.append((self._scheduler.now_ns, kind, shard, facts))

    def tell_only(self, kind: str, shard: int, *facts: Any) -> None:
        """The same for what follows from hashed events."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.told.append((self._scheduler.now_ns, kind, shard, facts))

    def note(self, kind: str, shard: int, *facts: Any) -> None:
        """Record an event; `shard` is -1 where it belongs to no shard. Facts are plain data or messages."""
        now = self._scheduler.now_ns
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._hash.update(self._encode((now, kind, shard, facts)))
        self._kept.append((self._scheduler.steps, now, kind, shard, facts))

    def say(self, kind: str, shard: int, *facts: Any) -> None:
        """Keep an event for the reader only: what follows from hashed events needs no hashing."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._kept.append((self._scheduler.steps, self._scheduler.now_ns, kind, shard, facts))

    def digest(self) -> str:
        """Hash of all events so far, in hexadecimal."""
        return self._hash.hexdigest()

    def tail(self, lines: int, shard: int | None = None) -> list[str]:
        """The last events in words, oldest first; with `shard` only its own and those that concern all shards."""
        chosen = [event for event in self._kept if shard is None or event[3] in (shard, -1)]
        return [_words(*event) for event in chosen[-lines:]]


def _words(step: int, now_ns: int, kind: str, shard: int, facts: tuple[Any, ...]) -> str:
    where = "" if shard < 0 else f" shard {shard}"
    return f"{step:>7} {now_ns / 1e9:>10.6f}s{where} {kind:<9} " + " ".join(_fact(fact) for fact in facts)


def _fact(fact: Any) -> str:
    if isinstance(fact, msgspec.Struct):
        inside = [
            f"{name}={_fact(getattr(fact, name))}" for name in fact.__struct_fields__ if name != "shard"
        ]
        return f"{type(fact).__name__}({', '.join(inside)})"
    if isinstance(fact, Entry):
        return f"[{fact.base_offset},{fact.next_offset})@{fact.term}"
    if isinstance(fact, EntryId):
        return f"{fact.offset}@{fact.term}"
    if isinstance(fact, tuple):
        return "(" + ", ".join(_fact(one) for one in fact) + ")"
    return str(fact)
