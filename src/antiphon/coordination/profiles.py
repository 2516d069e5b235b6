"""How a topic is replicated: the options of the five documents (C1-C14), the profiles that bundle them, and the
refusals.

`replication_of` reads a topic's profile and settings into one value. `check` is the validator: it refuses combinations
that could lose acknowledged data or could never be satisfied, and says why. Settings are text with dotted names, as all
settings of topics are; names with underscores are accepted too (`normal_name`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.replication.commit_rule import CommitRule, spellings
from antiphon.replication.promise import LEASE_MS_MAX

ELECTIONS: Final = ("coordinator", "raft", "manual")
WRITERS: Final = ("single", "multi")
ORIGINS_MAX: Final = 31  # S4.22
LEASE_MS_MIN: Final = 10  # what is left of less, when what clocks may run apart is taken off, saves no round

# What a profile sets where the topic's own settings do not.
PROFILES: Final[dict[str, dict[str, str]]] = {
    "oxia": {},
    "kip27": {},  # conditional append belongs to every append of every profile; the document asks for nothing else
    "raft": {"election": "raft"},
    "fluvio": {"commit": "live", "isolation": "uncommitted"},
    "tarantool": {"election": "raft", "commit.marker": "record", "on.not.leader": "forward"},
}
COMMIT_RULES: Final = spellings()
"""How the values of `commit` are written, for people."""

DEFAULTS: Final[dict[str, str]] = {
    "commit": "quorum",
    "election": "coordinator",
    "writers": "single",
    "min.live": "1",
    "live.lag.max": "10000",
    "live.lag.ms": "3000",
    "unclean.leader.election.enable": "false",
    "isolation": "committed",
    "commit.marker": "piggyback",
    "max.in.flight": "0",
    "ack.every": "1",
    "on.not.leader": "reject",
    "conflict": "last-writer-wins",
    "accept.split.brain": "false",
    "read.lease.ms": "0",
}
FIXED: Final = ("election", "writers")  # decided when a topic is made
MULTI_DEFAULTS: Final = {"commit": "local", "election": "manual"}


@dataclass(frozen=True, slots=True)
class Replication:
    """The options of one topic.

    Attributes:
        commit: when an entry is committed (C1).
        election: who chooses the leader: coordinator, raft or manual (C4).
        writers: single leader, or multi: each replica writes its own log (C11).
        min_live: fewest live replicas with which `commit=live` commits (C1).
        live_lag_max, live_lag_ms: records behind the leader, for so long, after which a replica is no longer live (S3.28).
        unclean: may a member that is not live be elected when no live one is left (C10)?
        isolation: of reads that do not say (C7): committed or uncommitted.
        commit_marker: piggyback, or record: the commit is a record of the log as well (C6).
        max_in_flight: appends that may wait for their commit; 0: bounded by bytes only (C8).
        ack_every: entries after which a follower acknowledges (C2).
        on_not_leader: reject with a hint, or forward (C12).
        conflict: the rule that merges the writers of a table (C11).
        lease_ms: of tables: for so long followers promise to support nobody else, so that the leader serves linearizable
            reads without a round; 0: never.
    """

    commit: CommitRule
    election: str
    writers: str
    min_live: int
    live_lag_max: int
    live_lag_ms: int
    unclean: bool
    isolation: str
    commit_marker: str
    max_in_flight: int
    ack_every: int
    on_not_leader: str
    conflict: str
    lease_ms: int = 0

    @property
    def is_live(self) -> bool:
        """Do commits go by the live replica set?"""
        return self.commit.by_live_set

    @property
    def is_multi(self) -> bool:
        """Does each replica write?"""
        return self.writers == "multi"


def normal_name(name: str) -> str:
    """`min_live` and the like by their dotted names; Kafka's `min.insync.replicas` keeps its own."""
    dotted = name.replace("_", ".")
    return dotted if dotted in DEFAULTS else name


def replication_of(profile: str, config: Mapping[str, str]) -> Replication:
    """The options that a profile and a topic's settings make. Raises InvalidRequestError for values that mean nothing."""
    own = {normal_name(name): value for name, value in config.items()}
    bundle = PROFILES.get(profile, {})
    if own.get("writers", bundle.get("writers")) == "multi":
        bundle = {**bundle, **MULTI_DEFAULTS}
    values = {**DEFAULTS, **bundle, **{name: value for name, value in own.items() if name in DEFAULTS}}
    if "min.live" not in own and "min.insync.replicas" in own and values["commit"] == "live":
        values["min.live"] = own["min.insync.replicas"]
    return Replication(
        commit=CommitRule.parse(values["commit"]),
        election=_one_of("election", values["election"], ELECTIONS),
        writers=_one_of("writers", values["writers"], WRITERS),
        min_live=_number("min.live", values["min.live"], 1),
        live_lag_max=_number("live.lag.max", values["live.lag.max"], 0),
        live_lag_ms=_number("live.lag.ms", values["live.lag.ms"], 50),
        unclean=_flag("unclean.leader.election.enable", values["unclean.leader.election.enable"]),
        isolation=_one_of("isolation", values["isolation"], ("committed", "uncommitted")),
        commit_marker=_one_of("commit.marker", values["commit.marker"], ("piggyback", "record")),
        max_in_flight=_number("max.in.flight", values["max.in.flight"], 0),
        ack_every=_number("ack.every", values["ack.every"], 1),
        on_not_leader=_one_of("on.not.leader", values["on.not.leader"], ("reject", "forward")),
        conflict=values["conflict"],
        lease_ms=_number("read.lease.ms", values["read.lease.ms"], 0),
    )


class Options:
    """The options of each topic of a cluster, read again when its settings have changed."""

    def __init__(self, topics: Mapping[str, TopicMeta], names: Mapping[bytes, str]) -> None:
        self._topics, self._names = topics, names
        self._known: dict[bytes, tuple[TopicMeta, Replication]] = {}

    def of(self, topic_id: bytes) -> Replication:
        """The options of a topic that exists."""
        topic = self._topics[self._names[topic_id]]
        known = self._known.get(topic_id)
        if known is not None and known[0] is topic:
            return known[1]
        if len(self._known) > 2 * len(self._topics):
            self._known.clear()  # most are of topics that are gone
        found = replication_of(topic.profile, topic.config)
        self._known[topic_id] = (topic, found)
        return found


def check(profile: str, config: Mapping[str, str], replicas: int, kind: Kind) -> Replication:
    """Refuse, with the reason, options that could lose more acknowledged data than they say, or can never be satisfied."""
    found = replication_of(profile, config)
    own = {normal_name(name): value for name, value in config.items()}
    rule, accepts = found.commit, _flag("accept.split.brain", own.get("accept.split.brain", "false"))
    _check_single(found, replicas, kind) if not found.is_multi else _check_multi(found, replicas)
    _check_lease(found, kind)
    if not rule.can_be_kept(replicas):
        raise InvalidRequestError(f"commit={rule} can never be kept with {replicas} replicas")
    minority = rule.may_lose(replicas) and not rule.is_local
    if minority and kind is Kind.TABLE:
        raise InvalidRequestError(
            f"commit={rule} is not for tables of {replicas} replicas: what a leader has applied and loses in a fail-over "
            f"cannot be taken back out of its store (S4.12); use at_least({replicas // 2 + 1}) or more"
        )
    if minority and not accepts:
        raise InvalidRequestError(
            f"commit={rule} acknowledges entries that a majority of {replicas} replicas may never get, so an election can "
            f"lose them; use at_least({replicas // 2 + 1}) or more, or accept.split.brain=true to accept that loss",
        )
    return found


def _check_single(found: Replication, replicas: int, kind: Kind) -> None:
    if found.is_live and found.election == "raft":
        raise InvalidRequestError(
            "commit=live with election=raft is unsafe: the live set may shrink to a minority that votes need not meet, "
            "so a leader could be elected that lacks committed entries; changes of the live set would have to be committed "
            "by the voters themselves. Use election=coordinator, which records every change before it counts"
        )
    if found.is_live and found.min_live > replicas:
        raise InvalidRequestError(f"min.live={found.min_live} can never be kept with {replicas} replicas")
    if found.unclean and not found.is_live:
        raise InvalidRequestError(
            f"unclean.leader.election.enable is for commit=live; with commit={found.commit} every election has a majority"
        )
    if kind is Kind.TABLE and found.commit.is_local:
        raise InvalidRequestError(
            "commit=local is not for tables: what a leader has applied and then loses in a fail-over cannot be taken back "
            "out of its store (S4.12); use writers=multi, which merges and needs no undo, or a topic"
        )


def _check_lease(found: Replication, kind: Kind) -> None:
    if not found.lease_ms:
        return
    if kind is not Kind.TABLE:
        raise InvalidRequestError(
            "read.lease.ms is a setting of tables: reads of a topic's log need no confirmation by the followers"
        )
    if found.is_multi:
        raise InvalidRequestError(
            "read.lease.ms is for tables with one writer: with writers=multi nobody leads, and no read is linearizable"
        )
    if not LEASE_MS_MIN <= found.lease_ms <= LEASE_MS_MAX:
        raise InvalidRequestError(
            f"read.lease.ms={found.lease_ms} must be 0, or {LEASE_MS_MIN} to {LEASE_MS_MAX}: an election waits for so long"
        )


def _check_multi(found: Replication, replicas: int) -> None:
    if not found.commit.is_local or found.election != "manual":
        raise InvalidRequestError(
            "writers=multi is asynchronous: each replica commits what it wrote by itself and nobody is elected, so it goes "
            f"with commit=local and election=manual, not commit={found.commit} and election={found.election} (C11)"
        )
    if replicas > ORIGINS_MAX:
        raise InvalidRequestError(
            f"writers=multi has at most {ORIGINS_MAX} replicas, not {replicas}: one position each in the vector clock"
        )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InvalidRequestError(f"{name}={value!r} is not offered: use {' or '.join(known)}")
    return value


def _number(name: str, value: str, low: int) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12 or int(value) < low:
        raise InvalidRequestError(f"{name}={value!r} must be a whole number from {low}")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value not in {"true", "false"}:
        raise InvalidRequestError(f"{name}={value!r} must be true or false")
    return value == "true"
