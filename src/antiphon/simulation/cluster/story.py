"""A failed run of whole nodes as a short story: who led, what went wrong, what clients saw, and what that broke.

Times are milliseconds since the phase with faults began.
"""

from collections.abc import Callable
from textwrap import shorten
from typing import Any, Final

from antiphon.simulation.cluster.faults import KINDS
from antiphon.simulation.cluster.options import ClusterOptions
from antiphon.simulation.cluster.run import ClusterResult
from antiphon.simulation.cluster.shrink import CLIENTS, SWITCHES
from antiphon.simulation.cluster.world import Event

CLIENT_FACTS: Final = 8  # of what clients were told, the last ones
LOG_FACTS: Final = 4  # of what nodes and clients wrote to their logs
LOG_WORDS_MAX: Final = 160
LINES_MAX: Final = 60
Facts = tuple[Any, ...]


def tell(result: ClusterResult) -> list[str]:
    """The story of a failed run, a sentence a line; the middle of a very long one is left out."""
    failure, options = result.failure, result.options
    if failure is None:
        return [f"Seed {options.seed} kept every promise."]
    begin = f"{options.nodes} nodes, profile {options.profile}, seed {options.seed}; {_clients(options)}."
    if not result.founded:
        begin += " The cluster was still being founded; times count from its start."
    name, _, what = failure.message.partition(": ")
    last = f"{_at(result, failure.time_s)} {name} was broken: {what.splitlines()[-1] if what else name}."
    before = [event for event in result.told if event[0] < result.began_s]
    after = [event for event in result.told if event[0] >= result.began_s]
    return [begin, *_leaders(result, before), *elided(_sentences(result, after)), last]


def _clients(options: ClusterOptions) -> str:
    counts = [(name.replace("_", " "), getattr(options, name)) for name in CLIENTS]
    switches = [name for name in SWITCHES if getattr(options, name)]
    return ", ".join([*(f"{count} {name}" for name, count in counts if count), *switches]) or "no clients"


def _at(result: ClusterResult, time_s: float) -> str:
    return f"At {(time_s - result.began_s) * 1000:.0f} ms"


def _leaders(result: ClusterResult, before: list[Event]) -> list[str]:
    """Who served which shard when faults began."""
    shards: dict[int, int] = {}
    for _, kind, facts in before:
        if kind == "leader" and _concerns(result, facts[1]):
            shards[facts[1]] = facts[0]
    if not shards:
        return []
    return [
        "Before: "
        + ", ".join(f"shard {shard} was led by node {node}" for shard, node in sorted(shards.items()))
        + "."
    ]


def _concerns(result: ClusterResult, shard: int) -> bool:
    """Belongs this shard into the story? Of a promise about one shard only that one."""
    failure = result.failure
    return failure is None or failure.shard in {-1, shard}


def _sentences(result: ClusterResult, events: list[Event]) -> list[str]:
    chosen = {*_last_of_clients(result, events), *_last_of_logs(events)}
    lines = []
    for place, (at, kind, facts) in enumerate(events):
        text = ""
        if kind == "start" and at == result.began_s:
            continue  # of all nodes at the very beginning
        if kind == "fault":
            text = _fault(*facts)
        elif kind == "leader":
            text = _leads(facts) if _concerns(result, facts[1]) else ""
        elif kind in SENTENCES:
            text = SENTENCES[kind](facts)
        elif place in chosen:
            text = _logged(facts) if kind == "log" else _client(kind, facts)
        if text:
            lines.append(f"{_at(result, at)} {text}.")
    return lines


def _last_of_clients(result: ClusterResult, events: list[Event]) -> list[int]:
    """Places of the last things clients were told; of those that the broken promise names, where it names any."""
    message = "" if result.failure is None else result.failure.message
    places = [at for at, (_, kind, _) in enumerate(events) if kind not in {*SENTENCES, *OTHERS}]
    named = [at for at in places if events[at][2] and repr(_text(events[at][2][0])) in message]
    return (named or places)[-CLIENT_FACTS:]


def _last_of_logs(events: list[Event]) -> list[int]:
    """Places of the last lines of logs; each text once."""
    places = {
        (facts[0], facts[1]): at
        for at, (_, kind, facts) in enumerate(events)
        if kind == "log" and facts[1] not in SILENT
    }
    return sorted(places.values())[-LOG_FACTS:]


def _text(fact: Any) -> Any:
    return fact.decode(errors="replace") if isinstance(fact, bytes) else fact


def _leads(facts: Facts) -> str:
    node, shard, term, end = facts
    return f"node {node} served shard {shard} as leader of term {term}, with a log of {end}"


def _logged(facts: Facts) -> str:
    who, event, more = facts
    return f"{who} wrote in its log: {event}" + (f" ({shorten(more, LOG_WORDS_MAX)})" if more else "")


def _client(kind: str, facts: Facts) -> str:
    """What a client did or was told; kinds that have no sentence of their own are told as they are."""
    match kind, facts:
        case "appended", (value, offset):
            return f"a client was told that {value} is at {offset}"
        case "produced", (value, count, offset):
            return f"a client was told that {count} records from {value} on are at {offset}"
        case "append-failed", (value, code):
            return f"a client was not told whether {value} was appended ({code})"
        case "get", (key, _, result, _):
            return f"a client read {key}: {_row(result)}"
        case (("put" | "delete"), (key, argument, result, returned)):
            what = f"delete of {key}" if kind == "delete" else f"put of {_text(argument[1])} at {key}"
            if argument[0] is not None:
                what += f" (expecting version {argument[0]})"
            return f"a client's {what} {_came(result) if returned else 'got no answer'}"
        case _:
            return f"a client's {kind.replace('-', ' ')}: " + " ".join(str(_text(fact)) for fact in facts)


def _came(result: Facts) -> str:
    outcome, version = result
    if version < 0:
        return "was done" if outcome == "ok" else "found nothing there"
    return (
        f"was done, as version {version}" if outcome == "ok" else f"was refused: version {version} was there"
    )


def _row(row: Any) -> str:
    return "nothing there" if row is None else f"{_text(row[1])}, version {row[0]}"


def _hosts(hosts: Any) -> str:
    return " and ".join([hosts] if isinstance(hosts, str) else hosts)


def _fault(kind: str, nodes: Facts, lasts_ms: int) -> str:
    first = nodes[0] if nodes else -1
    told = KINDS[kind].told
    if told is None:
        return f"a fault of kind {kind.replace('_', ' ')} befell node {first}, {lasts_ms} ms"
    return told.format(node=first, ms=lasts_ms)


SENTENCES: Final[dict[str, Callable[[Facts], str]]] = {
    "start": lambda facts: f"node {facts[0]} started",
    "start-failed": lambda facts: f"node {facts[0]} did not start: {facts[1]}",
    "kill": lambda facts: f"node {facts[0]} was killed",
    "midway": lambda facts: f"the end of node {facts[0]} was {facts[1]} {facts[2]} away",
    "power-off": lambda facts: f"node {facts[0]} lost power, and what it had not synced",
    "cut-off": lambda facts: (
        f"{_hosts(facts[0])} and the others, {_hosts(facts[1])}, were cut off from each other for {facts[2]} ms"
    ),
    "one-way": lambda facts: (
        f"nothing got through from {_hosts(facts[0])} to {_hosts(facts[1])} for {facts[2]} ms"
    ),
    "slow-disk": lambda facts: (
        f"the disk of node {facts[0]} took {facts[1]} s for each group of writes, for {facts[2]} ms"
    ),
    "slow-links": lambda facts: f"the links of node {facts[0]} were slow for {facts[1]} ms",
    "replica-stopped": lambda facts: (
        f"the replica of shard {facts[1]} on node {facts[0]} stopped: {facts[2]}"
    ),
    "carried-out": lambda facts: f"an operator's command {facts[0]} was carried out",
    "refused": lambda facts: f"an operator's command {facts[0]} was refused ({facts[1]})",
    "mend": lambda _: "all faults ended, and clients began nothing new",
}
SILENT: Final = frozenset({"replica_stopped"})  # the story has a sentence for it
OTHERS: Final = frozenset({"begin", "fault", "leader", "log", "put-failed", "delete-failed"})
"""Kinds that are told in another way, or not."""


def elided(lines: list[str]) -> list[str]:
    """The lines; of very many, those at both ends."""
    if len(lines) <= LINES_MAX:
        return lines
    half = LINES_MAX // 2
    return [*lines[:half], f"... and {len(lines) - 2 * half} more.", *lines[-half:]]
