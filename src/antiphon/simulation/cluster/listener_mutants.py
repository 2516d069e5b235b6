"""Mutants of the listeners: sequences, committed offsets and groups of Kafka's clients, and the pages of HTTP."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from antiphon.http import listener as http_listener
from antiphon.http.api import actions
from antiphon.http.api import topics as api_topics
from antiphon.kafka.fetch_sessions import FetchSession
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.handlers import fetch, produce
from antiphon.kafka.handlers.topics import TopicHandler
from antiphon.kafka.handlers.transactions import TransactionHandler
from antiphon.log import producer_state
from antiphon.model import in_step
from antiphon.native import session
from antiphon.node.peers import PeerLink
from antiphon.node.record_intake import RecordIntake
from antiphon.partition.reads import PartitionReads
from antiphon.records import recompression
from antiphon.records.intake import RecordWalker
from antiphon.security.peer_key import Acceptor
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, RESETS
from antiphon.transactions.group_offsets import Committed, GroupOffsets, OffsetAt

_LISTENERS: Final[dict[str, Any]] = {"appenders": 1, "putters": 1, "operations_per_s": 200}
_PRODUCERS: Final[dict[str, Any]] = {**RESETS, **_LISTENERS, "fault_ms": 2_000, "kafka_producers": 2}
_GROUP: Final[dict[str, Any]] = {**_LISTENERS, "kafka_producers": 1, "kafka_members": 3, "fault_ms": 5_000}


async def _commit_later(offsets: GroupOffsets, group: str, what: Sequence[OffsetAt]) -> None:
    """`GroupOffsets.commit` as a task that nobody waits for."""
    task = asyncio.ensure_future(_COMMIT(offsets, group, what))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _commit_and_remember(offsets: GroupOffsets, group: str, what: Sequence[OffsetAt]) -> None:
    """`GroupOffsets.commit`; a node remembers what was committed with it."""
    await _COMMIT(offsets, group, what)
    known = offsets.__dict__.setdefault("remembered", set())
    known.update((group, at.topic, at.partition) for at in what)


async def _fetch_remembered(
    offsets: GroupOffsets, group: str, wanted: Sequence[tuple[str, int]]
) -> list[Committed | None]:
    """`GroupOffsets.fetch`, of what was committed with this node."""
    known = offsets.__dict__.get("remembered", set())
    found = await _FETCH(offsets, group, wanted)
    return [one if (group, *at) in known else None for at, one in zip(wanted, found, strict=True)]


_COMMIT: Final = GroupOffsets.commit
_FETCH: Final = GroupOffsets.fetch

# Quick restarts of followers that come back to much that they lack.
_RESTARTS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 8_000,
    "fault_every_ms": 400,
    "kill_weight": 4,
    "readiness_monitors": 2,
    "appenders": 4,
    "putters": 2,
}

LISTENER_MUTANTS: Final = (
    ClusterMutant(
        "listener-forgets-sequences",
        "a batch of an idempotent producer that comes again is appended again",
        Edit(producer_state, "_check_normal", "last = batches[-1]", "return None"),
        options=_PRODUCERS,
    ),
    ClusterMutant(
        "recompressed-without-sequence",
        "a batch that is packed anew for its topic forgets whose it is",
        Edit(
            recompression,
            "recompressed",
            "told = header._replace(",
            "told = header._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1, ",
        ),
        options=_PRODUCERS,
        first_seed=14,
    ),
    ClusterMutant(
        "recompressed-by-half",
        "a compressed batch is stored as it was sent, whatever codec its topic wants",
        Edit(RecordIntake, "append", "changes = is_other", "changes = not header.codec and is_other"),
        options=_PRODUCERS,
    ),
    ClusterMutant(
        "listener-remembers-one-batch",
        "a producer's batch is recognised only when it is the last one, though five may be in flight",
        Edit(producer_state, "_check_normal", "batches[-NORMAL_WINDOW:]", "batches[-1:]"),
        options={**_PRODUCERS, "fault_every_ms": 60, "fault_ms": 4_000},
        first_seed=5,
    ),
    ClusterMutant(
        "listener-takes-garbage",
        "a batch is appended without a look at its records",
        Edit(RecordWalker, "walk_now", "self.walk(header, batch, rules)", "pass"),
        options={**CALM, **_LISTENERS, "kafka_producers": 1},
    ),
    ClusterMutant(
        "listener-follower-ahead",
        "consumers are served what a follower has, committed or not",
        Edit(
            PartitionReads,
            "_end_for",
            'end = log.log_end if isolation == "uncommitted" else state.high_watermark',
            "end = state.high_watermark if state.is_leader else log.log_end",
        ),
        options={**CALM, **_LISTENERS, "kafka_producers": 2, "kafka_consumers": 4},
        first_seed=6,
    ),
    ClusterMutant(
        "listener-one-id-for-all",
        "all producers are given the same id",
        Edit(TransactionHandler, "init_producer_id", "producer_id=producer_id", "producer_id=1000"),
        options={**CALM, **_LISTENERS, "kafka_producers": 2},
    ),
    ClusterMutant(
        "listener-wrong-offset",
        "an append is answered with the log's end instead of the batch's first offset",
        Edit(produce._Work, "wait_for", "result.base_offset,", "result.base_offset + 1,"),  # noqa: SLF001
        options={**CALM, **_LISTENERS, "kafka_producers": 1},
    ),
    ClusterMutant(
        "listener-reads-uncommitted",
        "consumers are given what is not committed yet",
        ((fetch, "ISOLATIONS", dict.fromkeys((0, 1), "uncommitted")),),
        options={**CALM, **_LISTENERS, "kafka_producers": 2, "kafka_consumers": 1},
    ),
    ClusterMutant(
        "listener-session-stands-still",
        "a fetch session goes on from the offsets with which it began",
        Edit(FetchSession, "want", "known.wanted = wanted", "pass"),
        options={**CALM, **_LISTENERS, "kafka_producers": 2, "kafka_consumers": 2},
    ),
    ClusterMutant(
        "listener-commits-later",
        "a commit of offsets is answered before it is replicated",
        ((GroupOffsets, "commit", _commit_later),),
        options={**CUTS, **_GROUP, "fault_every_ms": 800},
        rare=True,
    ),
    ClusterMutant(
        "listener-forgets-commits-at-move",
        "a node that becomes a group's coordinator does not know what was committed with the one before",
        (
            (GroupOffsets, "commit", _commit_and_remember),
            (GroupOffsets, "fetch", _fetch_remembered),
        ),
        options={**CALM, **_GROUP, "fault_every_ms": 800, "internal_elect_weight": 1},
        quick=True,
    ),
    ClusterMutant(
        "listener-takes-old-generations",
        "a member of an earlier generation may still commit",
        (
            Edit(ClassicGroup, "check_commit", "if error:", "if error == code.FENCED_INSTANCE_ID:"),
            Edit(ClassicGroup, "check_commit", "if generation != self._worked:", "if False:"),
        ),
        options={**CALM, **_GROUP},
    ),
    ClusterMutant(
        "listener-one-assignment-for-all",
        "every member is given what the leader meant for itself",
        Edit(
            ClassicGroup,
            "_assign",
            'assignments.get(member.member_id, b"")',
            'assignments.get(self.leader or "", b"")',
        ),
        options={**CALM, **_GROUP},
    ),
    ClusterMutant(
        "listener-page-fails",
        "a page of the HTTP listener fails",
        Edit(http_listener, "topics_told", "topic.profile", "topic.profil"),
        options={**CALM, **_LISTENERS, "http_clients": 1},
    ),
    ClusterMutant(
        "listener-api-dry-run-acts",
        "an action that is only to be planned is carried out",
        Edit(actions, "_carry_out", "if dry_run:", "if dry_run and not isinstance(request, CreateTopic):"),
        options={**CALM, **_LISTENERS, "api_clients": 1},
    ),
    ClusterMutant(
        "listener-api-skips-an-item",
        "the next piece of a list begins one item too late",
        Edit(api_topics, "page", "end = start + len(some)", "end = start + len(some) + (start == 0)"),
        options={**CALM, **_LISTENERS, "api_clients": 1},
    ),
    ClusterMutant(
        "listener-ready-when-joined",
        "a node is in step as soon as its shards have leaders, whatever it lacks",
        Edit(in_step, "_lack_of", "if node_id in shard.live", "if shard.live"),
        options=_RESTARTS,
        first_seed=8,
    ),
    ClusterMutant(
        "listener-forward-mixes-answers",
        "the answer to a request that was passed on goes to the one that has waited longest",
        Edit(
            PeerLink,
            "forward",
            "self._forwarded[request_id] = answered",
            "self._forwarded[request_id] = next(iter(self._forwarded.values()), answered)",
        ),
        options={**CALM, "putters": 0, "appenders": 0, "forwarded_clients": 6},
        rare=True,
    ),
    ClusterMutant(
        "listener-takes-wrong-proofs",
        "a node takes whoever says that it is a node for one, whatever its proof of the key",
        Edit(Acceptor, "check", 'not self._key.is_proof(proof.proof, b"dialer", terms)', "False"),
        options={**CALM, **_LISTENERS, "peer_key": True, "impostors": 1},
    ),
    ClusterMutant(
        "listener-static-member-keeps-place",
        "a commit counts as that of whoever has the instance id by now, also where another member made it",
        Edit(
            ClassicGroup,
            "check_commit",
            "error = self._refuse(member_id, instance_id, generation)",
            "member_id = self._members.id_of(instance_id) or member_id\n    "
            "error = self._refuse(member_id, None, generation)",
        ),
        options={**CUTS, "appenders": 0, "putters": 0, "operations_per_s": 100, "static_members": 4},
    ),
    ClusterMutant(
        "listener-takes-nodes-among-clients",
        "a node takes whoever says so on the port of clients for a node, where nodes have to prove it",
        Edit(session, "_refusal", "greets is Greets.CLIENTS and", "False and"),
        options={**CALM, **_LISTENERS, "peer_key": True, "impostors": 1},
    ),
    ClusterMutant(
        "listener-delete-does-nothing",
        "a deletion of a topic is answered and not passed on to the coordinator",
        Edit(TopicHandler, "_delete", "await self._gateway.delete_topic(name, timeout_s)", "pass"),
        options={**CALM, "putters": 0, "appenders": 0, "kafka_admins": 2},
    ),
    ClusterMutant(
        "listener-forgets-settings",
        "a topic is made without the settings that came along",
        Edit(TopicHandler, "_checked", "for s in topic.configs if s.value is not None", "for s in ()"),
        options={**CALM, "putters": 0, "appenders": 0, "kafka_admins": 2},
        first_seed=2,
    ),
)
