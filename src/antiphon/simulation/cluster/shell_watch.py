"""What has to hold where a node's shell does something on its own account, beside the protocol: see `watch`.

- `trimmed-committed`: no log begins above what its replica knows to be committed.
- `applied-first`: nor are those who follow a table woken for what its store does not have.
- `metadata-rises`: the metadata that a node knows never becomes older.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antiphon.model.cluster import mark_of
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.log.operations import LogOp
    from antiphon.model.cluster import MetadataDelta
    from antiphon.node.node import Node
    from antiphon.partition.partition import Partition
    from antiphon.records.entry_id import EntryId
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.cluster.truth import ShardTruth

Judge = Callable[..., None]
"""Called with a check and its arguments, in the middle of a step."""


def listen_to_node(judge: Judge, machine: "Machine", node: "Node") -> None:
    """Look on when a node hears of metadata."""
    view = node.view
    take = view.apply

    def apply(delta: "MetadataDelta") -> bool:
        before, mark = view.version, mark_of(view.recovery)
        taken = take(delta)
        if mark_of(view.recovery) == mark:
            judge(_check_version, machine, before, view.version)
        return taken

    view.apply = apply  # type: ignore[method-assign]


def _check_version(machine: "Machine", before: int, now: int) -> None:
    require(
        now >= before,
        "metadata-rises",
        f"node {machine.node_id} knew metadata of version {before} and goes back to {now}",
    )


def listen_to_host(judge: Judge, machine: "Machine", host: "Partition", truth: "ShardTruth") -> None:
    """Look on when a log begins elsewhere, and when those who follow a table are woken."""
    cut_off, start_anew, wake = host.log.trim, host.log.reset, host.readers.wake
    truth.begins(host.log.log_start)

    def trim(log_start: int) -> "LogOp | None":
        judge(_check_trim, machine, host, truth, log_start)
        op = cut_off(log_start)
        truth.begins(host.log.log_start)
        return op

    def reset(at: "EntryId", *rest: Any, **named: Any) -> "LogOp":
        truth.begins(at.offset)
        return start_anew(at, *rest, **named)

    def woken(**which: Any) -> None:
        if which["committed"]:
            judge(check_applied, machine, host, host.state.high_watermark, "wakes readers for")
        wake(**which)

    host.log.trim = trim  # type: ignore[method-assign]
    host.log.reset = reset  # type: ignore[method-assign]
    if host.table is not None:
        host.readers.wake = woken  # type: ignore[method-assign]


def _check_trim(machine: "Machine", host: "Partition", truth: "ShardTruth", log_start: int) -> None:
    if log_start <= host.log.log_start:
        return  # nothing goes; a log that is being reset to a snapshot begins above what its replica knows of
    require(
        log_start <= min(truth.end, host.mode.settled),
        "trimmed-committed",
        f"the log on node {machine.node_id} is to begin at {log_start}, committed is {truth.end}, "
        f"and it knows of {host.mode.settled}",
        host.shard_id,
    )


def check_applied(machine: "Machine", host: "Partition", high_watermark: int, what: str) -> None:
    """Does the store have what somebody is about to hear of?"""
    applied = host.state.require_table().state.applied_offset
    require(
        applied >= high_watermark,
        "applied-first",
        f"node {machine.node_id} {what} {high_watermark}, and its store is at {applied}",
        host.shard_id,
    )
