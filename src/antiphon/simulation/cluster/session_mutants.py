"""Mutants of sessions: when they end, what their ends take away, who takes them over."""

from typing import Any, Final

from antiphon.node.split_copy import SplitCopy
from antiphon.partition.sessions import PartitionSessions
from antiphon.records.changes import SESSION
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, CUTS, LONG_CUTS, MOVES, SNAPSHOTS, only
from antiphon.table import session_rows
from antiphon.table import state as states
from antiphon.table.session_clock import SessionClock
from antiphon.table.sessions import OpenSessions
from antiphon.table.state import TableState, open_state

_WORK: Final[dict[str, Any]] = only(session_clients=3)


def _without_sessions(self: TableState, path: str) -> int:
    """A copy of the rows, and of nothing that says which sessions are open."""
    self._store.checkpoint(path)
    with open_state(path, self._store.engine) as copy:
        batch = copy._store.batch()  # noqa: SLF001 - as a mistake in the store would
        for session_id in copy.sessions():
            batch.delete(session_rows.SESSION_ROW + SESSION.pack(session_id))
        copy._store.write(batch)  # noqa: SLF001
        copy.flush()
        return copy.applied_offset


SESSION_MUTANTS: Final = (
    ClusterMutant(
        "sessions-shorter-after-fail-over",
        "a new leader gives the sessions that it finds a tenth of their time-out, for the rest is over already",
        Edit(OpenSessions, "__init__", "OpenSession(ms) for", "OpenSession(ms // 10) for"),
        options={**CUTS, **_WORK},
        first_seed=4,
    ),
    ClusterMutant(
        "sessions-end-with-others-rows",
        "the end of a session removes what was put under it, whoever has put the key since",
        Edit(
            OpenSessions,
            "ending",
            "if version is not None and version[0] == keys[key]:",
            "if version is not None:",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "sessions-kept-by-deposed-leaders",
        "a sign of life is answered by whoever takes itself for the leader",
        Edit(
            PartitionSessions,
            "_keep",
            "self._clients.when_confirmed(0, timeout_s, confirmed, done)",
            "confirmed()",
        ),
        options={**LONG_CUTS, **_WORK, "one_way_weight": 0, "pause_weight": 0, "kill_weight": 0},
        first_seed=5,
    ),
    ClusterMutant(
        "sessions-leave-a-row-behind",
        "the end of a session that has several rows leaves the last one",
        Edit(OpenSessions, "ending", "for key in mine:", "for key in mine[:1] + mine[1:-1]:"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "sessions-end-in-two-entries",
        "the rows of a session are removed by one entry, and the session by a later one",
        (
            Edit(OpenSessions, "ending", "version, [owner]", "version"),
            Edit(
                OpenSessions,
                "ending",
                "to.session = SessionChange(session_id, ENDED)",
                "to.session = None if to.records else SessionChange(session_id, ENDED)",
            ),
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "sessions-come-back",
        "the entry that ends a session removes its rows from the store, and not the session",
        Edit(session_rows, "apply_change", "batch.delete(SESSION_ROW + session)", "pass"),
        options={**CRASHES, **_WORK},
    ),
    ClusterMutant(
        "sessions-missing-in-snapshots",
        "a snapshot of a table has the rows of sessions, and not the sessions",
        ((states.TableState, "checkpoint", _without_sessions),),
        options={**SNAPSHOTS, **_WORK, "session_clients": 5},
    ),
    ClusterMutant(
        "sessions-stay-with-the-parent",
        "a shard that is split off takes rows over and not the sessions that they belong to",
        Edit(SplitCopy, "_finish", "tuple(state.sessions().items())", "()"),
        options={**MOVES, **_WORK, "commands": "split"},
    ),
    ClusterMutant(
        "sessions-last-for-ever",
        "nobody looks whether sessions have expired",
        Edit(SessionClock, "_take", "self._heap[0][0] <= now_s", "False"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "sessions-end-while-they-are-kept",
        "a sign of life does not count",
        Edit(
            SessionClock,
            "kept",
            "self._due_s[session_id] = now_s + session.timeout_ms / 1000",
            "self._due_s.setdefault(session_id, now_s + session.timeout_ms / 1000)",
        ),
        options={**CALM, **_WORK},
    ),
)
