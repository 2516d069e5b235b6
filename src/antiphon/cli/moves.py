"""Waiting for shards that are on their way to other members, with a word on stderr of how far they are."""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import typer

from antiphon.client.moves import shards_on_their_way
from antiphon.model.metadata import ClusterMeta, ShardMeta
from antiphon.tools.rolling import wait_until

if TYPE_CHECKING:
    import antiphon

POLL_S: Final = 0.1
WAIT_S: Final = 3600.0

Concern = Callable[[str, ShardMeta], bool]


def anything(_topic: str, _shard: ShardMeta) -> bool:
    """Every shard is of concern."""
    return True


def wait_for_moves(db: "antiphon.Client", concerns: Concern, timeout_s: float) -> int:
    """Tell on stderr how many of the shards concerned are on their way until none is; returns how many those were.

    Raises TimedOutError, saying what the first of them waits for.
    """
    most = 0

    def look() -> str:
        nonlocal most
        cluster = db.metadata()
        moving = [each for each in shards_on_their_way(cluster) if concerns(*each)]
        most = max(most, len(moving))
        if not moving:
            return ""
        return f"{len(moving)} of {most} shards on their way; {_waits_for(cluster, *moving[0])}"

    wait_until_done(look, timeout_s, "it goes on by itself; `antiphon shard list` shows how far it is")
    return most


def wait_until_done(look: Callable[[], str], timeout_s: float, then: str) -> None:
    """Tell on stderr what `look` says that is waited for, until it says nothing.

    Raises TimedOutError, with the last words and what to know then.
    """
    time.sleep(POLL_S)  # nodes hear one after the other of what was decided just now
    wait_until(look, timeout_s, partial(typer.echo, err=True), then)


def _waits_for(cluster: ClusterMeta, topic: str, shard: ShardMeta) -> str:
    """What the metadata tells of where a shard stands."""
    name = f"{topic}/{shard.index}"
    down = {node.node_id for node in cluster.nodes if not node.alive}
    away = [node for node in shard.goal if node in down and node not in shard.ensemble]
    if away:
        return f"{name} waits for node {away[0]}, which is down: start it, or choose another"
    if shard.leader < 0:
        return f"{name} waits for a leader"
    if shard.outgoing:
        return f"{name} goes from {listed(shard.outgoing)} to {listed(shard.ensemble)}"
    if shard.learners:
        return f"{name} catches node {listed(shard.learners)} up"
    return f"{name} goes from {listed(shard.ensemble)} to {listed(shard.goal)}"


def listed(nodes: tuple[int, ...]) -> str:
    """Node ids for people."""
    return ",".join(str(node) for node in nodes)
