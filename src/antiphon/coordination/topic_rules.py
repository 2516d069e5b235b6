"""What a topic or table may be called and how it may be set up; everything else is refused with the reason.

Settings have Kafka's names, so that Kafka's tools can set them. A name that means nothing here is refused rather than
swallowed: a setting that is silently ignored is found out when it is needed.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.wire.metadata import Kind
from antiphon.wire.requests import FRAME_BYTES_MAX

NAME_LENGTH_MAX: Final = 249
SHARDS_MAX: Final = 10_000
REPLICAS_MAX: Final = 31  # S4.22
REPLICAS_DEFAULT: Final = 3
RESERVED_NAMES: Final = ("__cluster",)
INT64_MAX: Final = (1 << 63) - 1

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_INTEGER = re.compile(r"-?[0-9]{1,20}")

# What each named profile needs; None: served. A reason: refused with it.
PROFILES: Final[dict[str, str | None]] = {
    "oxia": None,
    "raft": "shards whose replicas vote among themselves are not offered to topics; 'oxia' commits by the same majority",
    "kip27": "every append of an 'oxia' topic may carry an expected offset; there is no profile of its own",
    "fluvio": "commit by all live replicas is not offered; 'oxia' commits by majority",
    "tarantool": "several writers per shard and asynchronous commit are not offered; 'oxia' has one leader per shard",
}


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
    """Refuse profiles that are unknown or not served, saying why."""
    if profile not in PROFILES:
        raise InvalidRequestError(f"unknown profile {profile!r}{_nearest(profile, PROFILES)}")
    reason = PROFILES[profile]
    if reason is not None:
        raise InvalidRequestError(f"profile {profile!r} cannot be used: {reason}")


def check_shards(shards: int) -> None:
    """1 to 10,000 shards a topic."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequestError(f"a topic has 1 to {SHARDS_MAX:,} shards, not {shards:,}")


def check_config(config: Mapping[str, str], replicas: int) -> None:
    """Every setting is known and has a value that can be kept.

    Args:
        config: settings by Kafka's names; values are text, as on Kafka's wire.
        replicas: replicas of the topic, which `min.insync.replicas` is held against.
    """
    for name, value in config.items():
        check = SETTINGS.get(name)
        if check is None:
            raise InvalidRequestError(f"unknown setting {name!r}{_nearest(name, SETTINGS)}")
        check(name, value)
    wanted = int(config.get("min.insync.replicas", "1"))
    if wanted > replicas // 2 + 1:
        raise InvalidRequestError(
            f"min.insync.replicas={wanted} cannot be kept: an append is acknowledged when a majority, "
            f"{replicas // 2 + 1} of {replicas} replicas, has it on disk"
        )


def check_owner(kind: Kind, internal: bool, name: str) -> None:
    """Names that begin with two underscores are for what nodes keep for themselves, and only for that."""
    if internal != name.startswith("__"):
        which = "must" if internal else "must not"
        owner = "the nodes' own" if internal else "your"
        raise InvalidRequestError(f"{owner} {kind.value} {name!r} {which} begin with '__'")


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


SETTINGS: Final[dict[str, Callable[[str, str], None]]] = {
    "retention.ms": _integer(0, INT64_MAX, "milliseconds a closed segment is kept, -1 for ever", also=(-1,)),
    "retention.bytes": _integer(0, INT64_MAX, "bytes a shard may keep, -1 for no limit", also=(-1,)),
    "segment.bytes": _integer(4096, 1 << 31, "bytes after which a new segment is begun"),
    "segment.ms": _integer(1, INT64_MAX, "milliseconds after which a new segment is begun"),
    "max.message.bytes": _integer(1024, FRAME_BYTES_MAX // 2, "bytes of the largest batch that is accepted"),
    "flush": _one_of(
        ("always", "interval", "os"),
        "an append is synced before it is acknowledged, by timer, or by the system",
    ),
    "flush.ms": _integer(1, 3_600_000, "milliseconds between syncs with flush=interval"),
    "cleanup.policy": _one_of(("delete",), "logs are not compacted"),
    "min.insync.replicas": _integer(
        1, REPLICAS_MAX, "replicas that must have an append before it is acknowledged"
    ),
    "compression.type": _one_of(("producer",), "batches are kept byte for byte as they were sent"),
    "message.timestamp.type": _one_of(("CreateTime",), "batches are kept byte for byte as they were sent"),
}
