"""Options that say from where to where: offsets, times, JSON by shard."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.spark.option_values import Options, Target

EARLIEST: Final = -2  # as in JSON offsets of Spark's Kafka source
LATEST: Final = -1
# Beside a topic's shards in a stream's offsets: which topic of that name it was; that other shards are not to be read.
ID_KEY: Final = "id"
ONLY_KEY: Final = "only"

ByShard = dict[str, dict[int, int]]
"""Topic -> shard -> an offset or a time in ms."""


@dataclass(frozen=True)
class OffsetSpec:
    """Where to start or end: `default` (EARLIEST or LATEST) for every shard, a time, or offsets or times chosen per shard.

    `chosen` maps topic -> shard -> offset (EARLIEST and LATEST stand for themselves), `chosen_ms` to times;
    `only_chosen`: read no other shards. `is_strict`: a time after the last record is an error, and not the end.
    `is_number`: a bare number was given, for what has one shard.
    """

    default: int = EARLIEST
    timestamp_ms: int | None = None
    chosen: ByShard = field(default_factory=dict)
    chosen_ms: ByShard = field(default_factory=dict)
    is_strict: bool = False
    is_number: bool = False

    @property
    def only_chosen(self) -> bool:
        """Were shards named one by one?"""
        return bool(self.chosen or self.chosen_ms)


def parse_range_end(options: Options, which: str, target: Target, default: int) -> OffsetSpec:
    """Options `<which>Offsets`, `<which>Timestamp` and `<which>OffsetsByTimestamp`, of which one may be given.

    `which` is starting or ending. Raises InvalidRequestError.
    """
    names = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    given = [name for name in names if options.text(name) is not None]
    if len(given) > 1:
        raise InvalidRequestError(f"give {given[0]} or {given[1]}, not both")
    is_strict = which == "starting" and _is_strict(options, given)
    timestamp_ms = options.time_ms(names[1], round_up=True)
    if timestamp_ms is not None:
        return OffsetSpec(default, timestamp_ms, is_strict=is_strict)
    if given == [names[2]]:
        times = parse_by_shard(names[2], options.text(names[2]) or "", target, 0, "JSON with times in ms")
        return OffsetSpec(default, chosen_ms=times, is_strict=is_strict)
    text = options.text(names[0])
    if text is None:
        return OffsetSpec(default)
    if text.lower() in {"earliest", "latest"}:
        spec = OffsetSpec(EARLIEST if text.lower() == "earliest" else LATEST)
    else:
        spec = OffsetSpec(
            default, None, parse_by_shard(names[0], text, target, EARLIEST, "earliest, latest or JSON")
        )
    ends_early = spec.default == EARLIEST or any(
        offset == EARLIEST for shards in spec.chosen.values() for offset in shards.values()
    )
    if which == "ending" and ends_early:
        raise InvalidRequestError("endingOffsets cannot be earliest")
    return spec


def _is_strict(options: Options, given: list[str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    if options.text(name) is not None and (not given or given == ["startingOffsets"]):
        raise InvalidRequestError(f"option {name} goes with startingTimestamp or startingOffsetsByTimestamp")
    return options.choice(name, "latest", ("error", "latest")) == "error"


def parse_by_shard(name: str, text: str, target: Target, low: int, words: str) -> ByShard:
    """`{"topic": {"0": 23, "1": -2}}` as topic -> shard -> number of at least `low`; raises InvalidRequestError.

    `words` tells what the option may be.

    The offsets in a stream's progress may be pasted as they are: what else they hold is passed over.
    """
    wrong = InvalidRequestError(
        f'option {name} has to be {words} such as {{"{target.name}": {{"0": 23}}}}, not {text!r}'
    )
    try:
        loaded: Any = json.loads(text)
        found = {
            str(topic): {
                int(shard): _number(at, low)
                for shard, at in shards.items()
                if shard not in {ID_KEY, ONLY_KEY}
            }
            for topic, shards in loaded.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise wrong from None
    if not found or any(not shards or min(shards) < 0 for shards in found.values()):
        raise wrong
    if target.pattern is None:
        _check_names(name, found, target)
    return found


def _check_names(name: str, found: ByShard, target: Target) -> None:
    for topic, shards in found.items():
        if topic not in target.names:
            raise InvalidRequestError(
                f"option {name} names {topic!r}, but what is read is {', '.join(target.names)}"
            )
        for shard in shards:
            if target.shards and shard not in target.shards[topic]:
                raise InvalidRequestError(
                    f"option {name} names shard {shard} of {topic}, which shards leaves out"
                )
    if set(found) != set(target.names):
        missing = ", ".join(topic for topic in target.names if topic not in found)
        raise InvalidRequestError(f"option {name} says nothing of {missing}")


def _number(value: object, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 2**63:
        raise TypeError("not such a number")
    return value


def parse_as_of(options: Options, target: Target) -> OffsetSpec | None:
    """Options `asOfOffset` and `asOfTimestamp`, of which one may be given. Raises InvalidRequestError."""
    text, timestamp_ms = options.text("asOfOffset"), options.time_ms("asOfTimestamp", round_up=False)
    if text is not None and timestamp_ms is not None:
        raise InvalidRequestError("give asOfOffset or asOfTimestamp, not both")
    if timestamp_ms is not None:
        return OffsetSpec(LATEST, timestamp_ms)
    if text is None:
        return None
    if text.isdecimal():
        return OffsetSpec(LATEST, None, {target.name: {0: int(text)}}, is_number=True)
    return OffsetSpec(LATEST, None, parse_by_shard("asOfOffset", text, target, EARLIEST, "a number or JSON"))
