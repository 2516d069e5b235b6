"""`antiphon transactions`: the open transactions of Kafka's clients, and an end for one that nobody ends."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.declare import COMMON, CommonOptions, command, group
from antiphon.cli.output import A_MOMENT_S, note_silent, print_table, progress, say, unsure, usage
from antiphon.model.metadata import ClusterMeta
from antiphon.model.transactions import TransactionState
from antiphon.tools.cluster_health import NODE_TIMEOUT_S, from_each_node

if TYPE_CHECKING:
    import antiphon

HEADINGS = (
    "TRANSACTIONAL ID",
    "STATE",
    "PRODUCER",
    "NUMBER",
    "OPEN_S",
    "TIMEOUT_S",
    "SHARDS",
    "GROUPS",
    "NODE",
)
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.")]

group(
    "transactions",
    "Transactions of Python's and of Kafka's clients: list, describe, abort.",
    "Example: antiphon transactions list",
)


@command("transactions list", "antiphon transactions list --open")
def list_transactions(
    only_open: Annotated[bool, typer.Option("--open", help="Only those with an open transaction.")] = False,
    common: CommonOptions = COMMON,
) -> None:
    """List transactional ids with the state of their last transaction."""
    with (
        progress("asking the nodes", after_s=A_MOMENT_S),
        common.connect() as db,
    ):
        found, silent = _all(db)
    rows = [(node, one) for node, one in found if not only_open or one.began_ms >= 0]
    note_silent(silent)
    told = [_plain(node, one) for node, one in rows]
    print_table(HEADINGS, [_row(node, one) for node, one in rows], told, as_json=common.as_json)
    if silent:
        raise typer.Exit(1)


@command("transactions describe", "antiphon transactions describe orders-1")
def describe(
    name: IdArgument,
    common: CommonOptions = COMMON,
) -> None:
    """Show one transactional id and what takes part in its open transaction."""
    with common.connect() as db:
        node, found = _one(db, name)
        topics = _partitions(db.metadata(), found)
    told = {**_plain(node, found), "partitions": topics}
    lines = (f"{key}: {', '.join(map(str, v)) if isinstance(v, list) else v}" for key, v in told.items())
    say("\n".join(lines), told, as_json=common.as_json)


@command("transactions abort", "antiphon transactions abort orders-1")
def abort(
    name: IdArgument,
    common: CommonOptions = COMMON,
) -> None:
    """Abort the open transaction of a transactional id. Its producer is fenced and has to begin anew."""
    with common.connect() as db:
        node, _ = _one(db, name)
        db.abort_transaction(node, name, timeout_s=NODE_TIMEOUT_S)
    text = f"the transaction of {name} is aborted, and its producer is fenced"
    say(text, {"transactional_id": name, "aborted": True}, as_json=common.as_json)


def _all(db: "antiphon.Client") -> tuple[list[tuple[int, TransactionState]], list[tuple[int, str]]]:
    """All ids with the nodes that coordinate them; and nodes that do not answer, with the reason."""
    found, silent = from_each_node(db, lambda node: db.transactions(node, timeout_s=NODE_TIMEOUT_S))
    return sorted(found, key=lambda one: one[1].transactional_id), silent


def _one(db: "antiphon.Client", name: str) -> tuple[int, TransactionState]:
    found, silent = _all(db)
    known = next((each for each in found if each[1].transactional_id == name), None)
    if known is None:
        usage(f"there is no transactional id {name!r}{unsure(silent)}", unknown="transactional id")
    return known


def _partitions(meta: ClusterMeta, one: TransactionState) -> list[str]:
    places = {
        shard.shard_id: f"{topic.name}/{shard.index}" for topic in meta.topics for shard in topic.shards
    }
    return [places.get(shard_id, f"shard {shard_id} (deleted)") for shard_id in one.shards]


def _open_s(one: TransactionState) -> float | None:
    return None if one.began_ms < 0 else round(time.time() - one.began_ms / 1000, 1)


def _plain(node: int, one: TransactionState) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "number": one.number,
        "open_s": _open_s(one),
        "timeout_s": one.timeout_ms / 1000,
        "shards": list(one.shards),
        "groups": list(one.groups),
        "node": node,
    }


def _row(node: int, one: TransactionState) -> tuple[Any, ...]:
    open_s = _open_s(one)
    return (
        one.transactional_id,
        one.state,
        f"{one.producer_id}/{one.producer_epoch}",
        one.number,
        "-" if open_s is None else open_s,
        one.timeout_ms / 1000,
        len(one.shards),
        len(one.groups),
        node,
    )
