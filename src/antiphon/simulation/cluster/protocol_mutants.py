"""Mutants of the pure protocol, in whole nodes."""

from typing import Final

from antiphon.coordination import elections, live_sets
from antiphon.coordination.elections import Elections
from antiphon.coordination.followers import Followers
from antiphon.coordination.reconfiguration import Reconfigurations
from antiphon.replication import quorum, voting
from antiphon.replication.actions import Action
from antiphon.replication.appointment import Appointment
from antiphon.replication.follower import FollowerSide
from antiphon.replication.leader import Leader
from antiphon.replication.leader_commit import CommitTracker
from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import Append, Entry
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.raft_transfer import Transfer
from antiphon.replication.voting import VoteElection
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CRASHES, MOVES, TROUBLE


def _take_when_empty(self: FollowerSide, message: Append, out: list[Action]) -> None:
    """`FollowerSide.on_append`; an empty log is taken to agree with everything, so the first entries land at its start."""
    terms = self._log.terms
    if terms.log_end == 0 and message.prev.offset > 0 and message.entries:
        shift = message.entries[0].base_offset
        moved = tuple(
            Entry(entry.term, entry.base_offset - shift, entry.next_offset - shift, entry.data)
            for entry in message.entries
        )
        out.append(self._log.append(moved))
        self.verified = terms.log_end
        self._ack_due, self._untold = True, self.config.ack_every
        return
    _ON_APPEND(self, message, out)


_ON_APPEND: Final = FollowerSide.on_append

PROTOCOL_MUTANTS: Final = (
    ClusterMutant(
        "h1-wrong-median",
        "takes sorted[n // 2] as the committed offset: for four replicas that is held by two of them (H1)",
        Edit(quorum, "committed_offset", "len(acks) - k", "len(acks) // 2"),
        profile="raft",
        options={**TROUBLE, "nodes": 4, "replicas": 4},
        quick=True,
    ),
    ClusterMutant(
        "h2-over-counted-ack",
        "a follower acknowledges the end of its log rather than what it has verified (H2)",
        Edit(FollowerSide, "acknowledge", "min(self.verified, log.durable_end)", "log.durable_end"),
        profile="raft",
        options=CRASHES,
    ),
    ClusterMutant(
        "h3-no-check-when-empty",
        "a follower whose log is empty takes entries without checking what is before them (H3)",
        ((FollowerSide, "on_append", _take_when_empty),),
        profile="raft",
        options=MOVES,
    ),
    ClusterMutant(
        "h5-unclipped-commit",
        "a follower takes over the leader's high watermark as it is (H5)",
        Edit(
            FollowerSide,
            "on_append",
            "min(self._leader_mark, self.verified, log.durable_end)",
            "min(self._leader_mark, log.terms.log_end)",
        ),
        profile="raft",
        options=CRASHES,
        quick=True,
        first_seed=4,
    ),
    ClusterMutant(
        "ack-before-sync",
        "an append counts as durable when it is handed to the disk",
        Edit(
            LocalLog,
            "append",
            "self._underway.append(",
            "self.durable_end = terms.log_end\n    self._underway.append(",
        ),
        profile="raft",
        options=TROUBLE,
    ),
    ClusterMutant(
        "vote-before-sync",
        "a vote is sent while it is on its way to the disk",
        Edit(LocalLog, "is_term_durable", "self.persisted_id >= self.term_write_id", "True"),
        profile="raft",
        options=TROUBLE,
    ),
    ClusterMutant(
        "ready-at-once",
        "a new leader serves clients before its first entry is committed",
        Edit(
            Leader,
            "start",
            "out.append(log.append((entry,)))",
            "out.append(log.append((entry,)))\n    self._become_ready(out)",
        ),
        profile="raft",
        options=TROUBLE,
        quick=True,
    ),
    ClusterMutant(
        "vote-for-anyone",
        "votes are given without comparing logs",
        Edit(voting, "is_up_to_date", "candidate >= own", "True"),
        profile="raft",
        options=TROUBLE,
        first_seed=2,
    ),
    ClusterMutant(
        "lost-heartbeat-watermark",
        "a follower ignores the high watermark of an Append without entries",
        Edit(
            FollowerSide,
            "on_append",
            "if message.high_watermark > self._leader_mark:",
            "if entries and message.high_watermark > self._leader_mark:",
        ),
        profile="raft",
        options=TROUBLE,
    ),
    ClusterMutant(
        "any-head",
        "the coordinator appoints whoever leads least, whatever its log",
        (
            Edit(
                elections,
                "choose_leader",
                "    able = election.able(record, votes)\n",
                "    return min(votes, key=lambda node: (led_by(node), votes[node], ensemble.index(node)))\n",
            ),
            Edit(
                Appointment,
                "_may_lead",
                "        and state.repair.is_sound\n"
                "        and self._is_fenced_off(message)\n"
                "        and all(other <= head for _, other in message.heads)\n",
                "",
            ),
        ),
        profile="oxia",
        options=TROUBLE,
    ),
    ClusterMutant(
        "forgotten-member",
        "nobody fences a member that was away during its shard's election",
        Edit(Followers, "bring_back", "if node == leader or leader == ABSENT_NODE:", "if True:"),
        profile="oxia",
        options=TROUBLE,
        first_seed=2,
    ),
    ClusterMutant(
        "coordinator-grows-live",
        "the coordinator takes a member that is back into the live set by itself",
        Edit(
            Elections,
            "_member_returned",
            "    meta = record.meta\n",
            "    meta = record.meta\n"
            "    if meta.fence == Fence.LIVE and node not in meta.live and node in meta.ensemble:\n"
            "        version, live = meta.live_version + 1, (*meta.live, node)\n"
            "        record = self._shards.set(record, live=live, live_version=version)\n"
            "        meta = record.meta\n",
        ),
        profile="fluvio",
        options=TROUBLE,
    ),
    ClusterMutant(
        "stale-live-proposal",
        "a live set is recorded whatever record the proposal was made on top of",
        Edit(live_sets, "accept", "if report.version != meta.live_version:", "if False:"),
        profile="fluvio",
        options=TROUBLE,
        first_seed=6,
    ),
    ClusterMutant(
        "no-joint-record",
        "the coordinator records new voters without those before them",
        Edit(
            Reconfigurations,
            "_put",
            "voting = {*meta.ensemble, *meta.outgoing}",
            "meta = msgspec.structs.replace(meta, outgoing=())\n    voting = set(meta.ensemble)",
        ),
        profile="oxia",
        options=MOVES,
    ),
    ClusterMutant(
        "majority-will-do",
        "at_least(k) is acknowledged by a majority, also where k is more",
        Edit(QuorumAckTracker, "go_by_sets", "rule.enough(len(slots))", "majority(len(slots))"),
        profile="oxia",
        options={**TROUBLE, "commit": "at_least(3)"},
        quick=True,
    ),
    ClusterMutant(
        "acknowledged-is-settled",
        "with commit=local, what the leader alone has goes to the followers as settled",
        Edit(CommitTracker, "_advance_apart", "min(mark, self._tracker.settled_offset(log.settled))", "mark"),
        profile="tarantool",
        options={**TROUBLE, "commit": "local"},
    ),
)

_HAND_OVER: Final = """
# A leader hands over to a replica whose log ends before its own: first it sends what is missing there. The others vote for
# the successor at once, though they have just heard from the leader, and it has everything that was committed.
replicas a b c
elect a
append a aria
deliver from a to b
deliver from b to a
drop to c
expect a commit 2
transfer c
deliver
expect c role follower          # it lacks an entry, as the next heartbeat shows
tick a 2
deliver
tick a 2
deliver
expect c role leader
expect c ready yes
expect c disk 1:start 1:aria 2:start
settle
expect all disk like c
"""

SCRIPT_MUTANTS: Final = (
    ClusterMutant(
        "hasty-transfer",
        "a leader hands over before its successor has the whole log, and voters take its word for it",
        (
            Edit(Transfer, "is_due", "target.ack_offset >= log_end", "True"),
            Edit(
                VoteElection,
                "_would_vote_for",
                "is_up_to_date(message.head, state.log.terms.end)",
                "(message.transfer or is_up_to_date(message.head, state.log.terms.end))",
            ),
        ),
        profile="raft",
        script=_HAND_OVER,
    ),
)
"""For scripts alone: bytes of a connection arrive in order, so a successor that votes has what was sent before."""
