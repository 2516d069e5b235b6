"""Recipes of coordination on tables: locks, elections, counters, queues, registries of services.

Each has a face for programs that block and one for event loops (`AsyncLock` for `Lock`), which does the work. They use the
client's public calls and nothing else. docs/recipes.md says what each of them guarantees, and what it does not.
"""

from antiphon.recipes.counter import AsyncCounter
from antiphon.recipes.election import AsyncLeaderElection, Leader
from antiphon.recipes.lock import AsyncLock
from antiphon.recipes.queue import AsyncQueue, AsyncTaken
from antiphon.recipes.registry import AsyncServiceRegistry
from antiphon.recipes.sync import Counter, LeaderElection, Lock, Queue, ServiceRegistry, Taken

__all__ = [
    "AsyncCounter",
    "AsyncLeaderElection",
    "AsyncLock",
    "AsyncQueue",
    "AsyncServiceRegistry",
    "AsyncTaken",
    "Counter",
    "Leader",
    "LeaderElection",
    "Lock",
    "Queue",
    "ServiceRegistry",
    "Taken",
]
