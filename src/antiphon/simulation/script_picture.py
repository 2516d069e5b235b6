"""What a scripted cluster looks like between two steps: nodes with their logs, and the messages underway."""

from collections.abc import Iterable

from antiphon.replication.messages import Append, Entry
from antiphon.replication.raft import RaftReplica
from antiphon.simulation.scripted_cluster import ScriptedCluster, ScriptedReplica, Underway
from antiphon.simulation.stored_log import StoredLog

ENTRIES_MAX = 16  # of a log, the last ones
MESSAGES_MAX = 12


def role_of(actor: ScriptedReplica) -> str:
    """Its role in one word."""
    if isinstance(actor.replica, RaftReplica) and actor.replica.is_candidate:
        return "candidate"
    return actor.role.value


def words_of(log: StoredLog) -> str:
    """Its entries, each with term and content."""
    return " ".join(f"{entry.term}:{entry.data}" for entry in log.entries) or "empty"


def picture(stage: ScriptedCluster) -> list[str]:
    """A line a node and one for each message underway, for people.

    Entries are TERM:CONTENT. What stands before `|` is committed as far as the node knows, what stands in brackets is not
    durable yet. Of a node that is down the disk is shown.
    """
    width = max(map(len, stage.names))
    lines = [f"{stage.name(node):{width}}  {_node(stage, actor)}" for node, actor in stage.actors.items()]
    receivers: dict[tuple[str, str], list[str]] = {}
    for sent in stage.underway:
        receivers.setdefault((stage.name(sent.source), _message(sent)), []).append(stage.name(sent.to))
    messages = [f"{source} -> {' '.join(to)}: {text}" for (source, text), to in receivers.items()]
    lines += messages[:MESSAGES_MAX]
    if len(messages) > MESSAGES_MAX:
        lines.append(f"and {len(messages) - MESSAGES_MAX} more messages")
    return lines


def _node(stage: ScriptedCluster, actor: ScriptedReplica) -> str:
    files = actor.files
    if not actor.alive:
        return f"{'down':9}  term {files.term:<3} {_entries(files.log.entries, files.high_watermark, files.log.end_offset)}"
    replica = actor.replica
    log = _entries(actor.log.entries, replica.high_watermark, _durable_end(actor))
    voted = f"  (voted for {stage.name(replica.voted_for)})" if replica.voted_for else ""
    return f"{role_of(actor):9}  term {replica.term:<3} {log}{voted}"


def _durable_end(actor: ScriptedReplica) -> int:
    """How far the disk has what the replica has."""
    end = 0
    for mine, on_disk in zip(actor.log.entries, actor.files.log.entries, strict=False):
        if mine != on_disk:
            break
        end = mine.next_offset
    return end


def _entries(entries: Iterable[Entry], committed: int, durable: int) -> str:
    shown: list[str] = []
    marked = committed == 0
    for entry in entries:
        if not marked and entry.base_offset >= committed:
            shown.append("|")
            marked = True
        word = f"{entry.term}:{entry.data}"
        shown.append(word if entry.next_offset <= durable else f"({word})")
    if not marked:
        shown.append("|")
    left_out = len(shown) - ENTRIES_MAX
    if left_out > 0:
        shown = [f"..{left_out}..", *shown[left_out:]]
    return " ".join(shown) or "empty"


def _message(sent: Underway) -> str:
    message = sent.message
    words = f"{type(message).__name__}, term {message.term}"
    if isinstance(message, Append):
        entries = " ".join(f"{entry.term}:{entry.data}" for entry in message.entries) or "no entries"
        words += f", {entries} after offset {message.prev.offset}, committed up to {message.high_watermark}"
    return words
