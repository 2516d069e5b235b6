"""Which names and settings a topic or table may have; everything else is refused with the reason.

Settings have Kafka's names, so that Kafka's tools can set them. A name without meaning here is refused and not ignored:
a setting that is silently ignored is noticed only when it is needed.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Final

from antiphon.coordination.compression_settings import BOUNDS, PRODUCER, TYPES
from antiphon.coordination.profiles import DEFAULTS, PROFILES, Replication
from antiphon.coordination.profiles import check as check_replication
from antiphon.errors import InvalidRequestError
from antiphon.model.internal import CLUSTER_LOG, KINDS, PREFIX
from antiphon.model.metadata import SHARDS_MAX, Kind, cleanup_policies
from antiphon.model.placement import NODES_MAX
from antiphon.model.requests import FRAME_BYTES_MAX
from antiphon.records.intake import VALIDATIONS
from antiphon.records.key_order import SETTING as KEY_SORTING
from antiphon.records.key_order import SORTINGS, is_hierarchical
from antiphon.replication.commit_rule import QUORUM, CommitRule

NAME_LENGTH_MAX: Final = 249
REPLICAS_MAX: Final = NODES_MAX  # S4.22
REPLICAS_DEFAULT: Final = 3
RESERVED_NAMES: Final = (CLUSTER_LOG,)
LOG_APPEND_TIME: Final = "LogAppendTime"
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_FRACTION = re.compile(r"[0-9]{1,3}(\.[0-9]{0,17})?")
_INTEGER = re.compile(r"-?[0-9]{1,20}")


def check_name(name: str) -> None:
    """Kafka's rules: 1 to 249 of a-z A-Z 0-9 . _ - and neither "." nor ".."."""
    if not name:
        raise InvalidRequestError("a topic needs a name")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidRequestError(
            f"topic name has {len(name)} characters, at most {NAME_LENGTH_MAX} are allowed"
        )
    if name in {".", ".."}:
        raise InvalidRequestError(f"topic name cannot be {name!r}")
    if not _NAME.fullmatch(name):
        wrong = next(c for c in name if not _NAME.fullmatch(c))
        raise InvalidRequestError(
            f"topic name {name!r} has {wrong!r}: only a-z, A-Z, 0-9, '.', '_' and '-' are allowed"
        )
    if name in RESERVED_NAMES:
        raise InvalidRequestError(f"{name!r} is the cluster's own log")


def check_profile(profile: str) -> None:
    """Refuse profiles that are unknown."""
    if profile not in PROFILES:
        raise InvalidRequestError(f"unknown profile {profile!r}{_nearest(profile, PROFILES)}")


def check_shards(shards: int) -> None:
    """1 to 10,000 shards a topic."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequestError(f"a topic has 1 to {SHARDS_MAX:,} shards, not {shards:,}")


def check_settings(profile: str, config: Mapping[str, str], replicas: int, kind: Kind) -> Replication:
    """Check a topic's settings: each by itself, and all that concern replication together.

    Args:
        profile: the topic's.
        config: its own settings, with the names that `normal_name` gives.
        replicas: the number that it has, or will have.
        kind: topic or table; not every commit rule is allowed for a table.
    """
    check_profile(profile)
    for name in config:
        if name not in SETTINGS:
            raise InvalidRequestError(
                f"unknown setting {name!r}{_nearest(name, SETTINGS)}", unknown="setting"
            )
    found = check_replication(profile, config, replicas, kind)
    check_config(config, replicas, found.commit)
    check_cleanup(config, replicas, kind, found)
    if is_hierarchical(config):
        _check_hierarchical(kind, found)
    if kind is Kind.TABLE and config.get("message.timestamp.type") == LOG_APPEND_TIME:
        raise InvalidRequestError(
            "message.timestamp.type=LogAppendTime is a setting of topics: a table's changes have the time of their append"
        )
    if kind is Kind.TABLE and config.get("compression.type", PRODUCER) != PRODUCER:
        raise InvalidRequestError(
            f"compression.type={config['compression.type']} is a setting of topics: nobody sends batches to a table"
        )
    return found


def _check_hierarchical(kind: Kind, found: Replication) -> None:
    """Refuse the hierarchical order of keys where there is no table of one writer."""
    if kind is not Kind.TABLE:
        raise InvalidRequestError(
            f"{KEY_SORTING}=hierarchical is a setting of tables: a topic's records are in the order of its log"
        )
    if found.is_multi:
        raise InvalidRequestError(
            f"{KEY_SORTING}=hierarchical is for tables with one writer: with writers=multi keys are in the order of their "
            "bytes"
        )


def check_cleanup(config: Mapping[str, str], replicas: int, kind: Kind, found: Replication) -> None:
    """Refuse compaction where what is compacted may yet be lost, or where something else does its work."""
    if "compact" not in cleanup_policies(config):
        return
    reason = ""
    if kind is Kind.TABLE:
        reason = (
            "a table has the newest value of each key in its store, and retention trims its log behind that"
        )
    elif found.is_multi:
        reason = "with writers=multi each replica has its own log, whose entries are numbered without gaps"
    elif found.unclean:
        reason = "with unclean.leader.election.enable=true what is compacted may yet be given up"
    elif found.commit.may_lose(replicas):
        reason = f"with commit={found.commit} an election can lose what is acknowledged, and compacted"
    if reason:
        raise InvalidRequestError(f"cleanup.policy={config['cleanup.policy']} is refused: {reason}")
    low, high = (
        int(config.get("min.compaction.lag.ms", "0")),
        int(config.get("max.compaction.lag.ms", INT64_MAX)),
    )
    if low > high:
        raise InvalidRequestError(f"min.compaction.lag.ms={low} is above max.compaction.lag.ms={high}")


def check_config(config: Mapping[str, str], replicas: int, commit: CommitRule = QUORUM) -> None:
    """Every setting is known and has a value that can be satisfied.

    Args:
        config: settings with Kafka's names; values are text, as on Kafka's wire.
        replicas: replicas of the topic, for the check of `min.insync.replicas`.
        commit: the topic's commit rule, which says how many of them an append waits for.
    """
    for name, value in config.items():
        check = SETTINGS.get(name)
        if check is None:
            raise InvalidRequestError(
                f"unknown setting {name!r}{_nearest(name, SETTINGS)}", unknown="setting"
            )
        check(name, value)
    wanted = int(config.get("min.insync.replicas", "1"))
    if wanted > commit.copies(replicas):
        raise InvalidRequestError(
            f"min.insync.replicas={wanted} cannot be kept: with commit={commit} an append is acknowledged when "
            f"{commit.waits_for(replicas)}"
        )


def check_owner(kind: Kind, internal: bool, name: str) -> None:
    """Names that begin with two underscores are reserved for internal topics and tables, which must have such a name."""
    if internal != name.startswith(PREFIX):
        which = "must" if internal else "must not"
        owner = "the nodes' own" if internal else "your"
        raise InvalidRequestError(f"{owner} {kind.value} {name!r} {which} begin with '__'")


def check_internal_kind(kind: Kind, name: str) -> None:
    """Nodes and jobs rely on the kind of an internal topic or table, which can never be deleted and created anew."""
    wanted = KINDS.get(name, kind)
    if wanted is not kind:
        raise InvalidRequestError(f"{name!r} is a {wanted.value} of the cluster's, not a {kind.value}")


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if near:
        return f": did you mean {near[0]!r}?"
    return f"; known are {', '.join(sorted(known))}"


def _integer(low: int, high: int, meaning: str, also: tuple[int, ...] = ()) -> Callable[[str, str], None]:
    """A check for whole numbers in [low, high] or one of `also`."""

    def check(name: str, value: str) -> None:
        if not _INTEGER.fullmatch(value):
            raise InvalidRequestError(f"{name}={value!r} is not a whole number ({meaning})")
        number = int(value)
        if not low <= number <= high and number not in also:
            special = "".join(f", or {n}" for n in also)
            raise InvalidRequestError(f"{name}={number} is outside {low}..{high}{special} ({meaning})")

    return check


def _one_of(values: tuple[str, ...], reason: str) -> Callable[[str, str], None]:
    def check(name: str, value: str) -> None:
        if value not in values:
            raise InvalidRequestError(f"{name}={value!r} is not served: {reason}; use {' or '.join(values)}")

    return check


def _policy(name: str, value: str) -> None:
    found = [one.strip() for one in value.split(",")]
    if not found or len(set(found)) != len(found) or not {"delete", "compact"}.issuperset(found):
        raise InvalidRequestError(f"{name}={value!r} is not served: use delete, compact or compact,delete")


def _ratio(name: str, value: str) -> None:
    if not _FRACTION.fullmatch(value) or not 0 <= float(value) <= 1:
        raise InvalidRequestError(f"{name}={value!r} is not a number from 0 to 1")


def _judged_together(_name: str, _value: str) -> None:
    """How a topic is replicated is judged by all of those settings at once (`profiles.check`)."""


SETTINGS: Final[dict[str, Callable[[str, str], None]]] = {
    "retention.ms": _integer(0, INT64_MAX, "milliseconds a closed segment is kept, -1 for ever", also=(-1,)),
    "retention.bytes": _integer(0, INT64_MAX, "bytes a shard may keep, -1 for no limit", also=(-1,)),
    "segment.bytes": _integer(4096, 1 << 31, "bytes after which a new segment is begun"),
    "segment.ms": _integer(1, INT64_MAX, "milliseconds after which a new segment is begun"),
    "max.message.bytes": _integer(1024, FRAME_BYTES_MAX // 2, "bytes of the largest batch that is accepted"),
    "record.validation": _one_of(
        VALIDATIONS, "every record is looked at, those that are not compressed, or none"
    ),
    "max.batch.records": _integer(1, INT32_MAX, "records of the largest compressed batch that is accepted"),
    "max.decompressed.bytes": _integer(
        1 << 20, 1 << 30, "bytes that the records of a batch may unpack to, at a node and at its readers"
    ),
    "bulk.bytes.per.second": _integer(
        0, INT64_MAX, "bytes of bulk writes that a shard takes a second, -1 for no limit", also=(-1,)
    ),
    "expected.offset.header": _one_of(
        ("true", "false"), "a header of records says where they must be written, or no header does"
    ),
    "flush": _one_of(
        ("always", "interval", "os"),
        "an append is synced before it is acknowledged, by timer, or by the system",
    ),
    "flush.ms": _integer(1, 2**63 - 1, "milliseconds between syncs with flush=interval"),
    "cleanup.policy": _policy,
    "min.compaction.lag.ms": _integer(0, INT64_MAX, "milliseconds that a record is not compacted"),
    "max.compaction.lag.ms": _integer(1, INT64_MAX, "milliseconds after which a closed segment is compacted"),
    "delete.retention.ms": _integer(0, INT64_MAX, "milliseconds that a tombstone stays in a clean log"),
    "min.cleanable.dirty.ratio": _ratio,
    "min.insync.replicas": _integer(
        1, REPLICAS_MAX, "replicas that must have an append before it is acknowledged"
    ),
    "compression.type": _one_of(
        TYPES, "batches are kept as they were sent, or the leader stores them with one codec"
    ),
    **{
        f"compression.{codec}.level": _integer(low, high, f"the level of compression.type={codec}", also=also)
        for codec, (low, high, also) in BOUNDS.items()
    },
    "message.timestamp.type": _one_of(
        ("CreateTime", LOG_APPEND_TIME), "records have their producer's time, or that of their append"
    ),
    KEY_SORTING: _one_of(SORTINGS, "Oxia's clients see keys by their bytes, or by their depth first"),
    **dict.fromkeys(DEFAULTS, _judged_together),
}
