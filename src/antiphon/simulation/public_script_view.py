"""What a public cluster script can see of our replicas, printed as the scripts print it.

Their index i (from 1, the entry at which a leader's term begins included) is our offset i - 1, so an index of theirs is the
exclusive end of ours with the same number.

| printed | taken from |
|---|---|
| a log (`raft-log`, `compact`) | what is on the node's disk |
| Voter, Non-Voter | the members that the replica knows to be committed: theirs count from when they are applied |
| Lead:0 | no leader is known in the term, or its connection was reported to be broken (`doubt_leader`) |
| StateProbe | the cursor probes, or the connection to the follower was reported to be broken |
| pendingSnap | the snapshot that was sent to the follower last |
"""

import json
from collections.abc import Iterable

from antiphon.replication.messages import Entry
from antiphon.replication.progress import FollowerStatus, ProgressState
from antiphon.replication.replica_state import Role
from antiphon.simulation.public_script_language import LogEntry, change_text, changes_between
from antiphon.simulation.public_script_replica import PublicScriptReplica
from antiphon.simulation.scripted_cluster import TERM_START
from antiphon.simulation.stored_log import StoredLog


def log_entries(actor: PublicScriptReplica, log: StoredLog) -> list[LogEntry]:
    """The entries of a node's log, or of what its disk has of it."""
    return [LogEntry(entry.term, entry.next_offset, _content(actor, entry)) for entry in log.entries]


def _content(actor: PublicScriptReplica, entry: Entry) -> str:
    if entry.members is not None:
        before = actor.replica.members_at(entry.base_offset)
        return change_text([] if before is None else changes_between(before, entry.members))
    text = "" if entry.data == TERM_START else str(entry.data)
    return f"EntryNormal {json.dumps(text, ensure_ascii=False)}"


def log_lines(actor: PublicScriptReplica) -> list[str]:
    """`raft-log` and `compact`: what the disk has."""
    log = actor.files.log
    if not log.entries:
        return [f"log is empty: first index={log.start.offset + 1}, last index={log.start.offset}"]
    return [str(entry) for entry in log_entries(actor, log)]


def state_lines(actors: Iterable[PublicScriptReplica]) -> list[str]:
    """`raft-state`: role, membership, term and leader of every node."""
    return [_state_line(actor) for actor in actors]


def _state_line(actor: PublicScriptReplica) -> str:
    replica = actor.replica
    members = replica.settled_members
    votes = "Voter" if members is not None and actor.node in members.voting else "Non-Voter"
    leader = None if replica.hand.doubts_leader else replica.leader
    return f"{actor.node}: {_state(actor)} ({votes}) Term:{replica.term} Lead:{leader or 0}"


def _state(actor: PublicScriptReplica) -> str:
    if actor.role is Role.LEADER:
        return "StateLeader"
    return "StateCandidate" if actor.replica.is_candidate else "StateFollower"


def status_lines(actor: PublicScriptReplica, in_flight_max: int | None) -> list[str]:
    """`status`: what a leader knows of its followers; `in_flight_max` entries may be underway to each."""
    replica = actor.replica
    if actor.role is not Role.LEADER:
        return []
    durable = replica.log.durable_end  # nothing is sent to oneself
    lines = {actor.node: f"{actor.node}: StateReplicate match={durable} next={durable + 1}"}
    for one in replica.followers():
        lines[one.node] = f"{one.node}: {_progress(actor, one, in_flight_max)}"
    return [lines[node] for node in sorted(lines)]


def _progress(actor: PublicScriptReplica, one: FollowerStatus, in_flight_max: int | None) -> str:
    match, after = f"match={one.ack_offset}", f"next={one.last_pushed + 1}"
    if one.state is ProgressState.SNAPSHOT:
        sent = actor.snapshots.get(one.node)
        end = 0 if sent is None else sent.offset
        return f"StateSnapshot {match} next={end + 1} paused pendingSnap={end}"
    if not one.connected:
        return f"StateProbe {match} next={one.ack_offset + 1}"
    if one.state is ProgressState.PROBE:
        return f"StateProbe {match} {after} paused"
    messages = actor.in_flight(one.node)
    if in_flight_max is not None and one.last_pushed - one.ack_offset >= in_flight_max:
        return f"StateReplicate {match} {after} paused inflight={messages}[full]"
    return f"StateReplicate {match} {after}" + (f" inflight={messages}" if messages else "")
