"""A failed run as a short story in plain sentences: what went wrong, who led, what was cut, and what that broke."""

from collections.abc import Callable
from typing import Any

from antiphon.simulation.runner import RunResult
from antiphon.simulation.trace import Event

LINES_MAX = 60
Facts = tuple[Any, ...]


def tell(result: RunResult) -> list[str]:
    """The story of a failed run, a sentence a line; the middle of a very long one is left out."""
    failure = result.failure
    if failure is None:
        return [f"Seed {result.options.seed} kept every promise."]
    shards = {shard for _, _, shard, _ in result.told if shard >= 0}
    lines = [_sentence(event, len(shards) > 1) for event in _worth_telling(result.told)]
    options = result.options
    begin = (
        f"{options.nodes} nodes, {options.clients} client{'s' if options.clients > 1 else ''}, profile {options.profile}, "
        f"seed {options.seed}."
    )
    name, _, what = failure.message.partition(": ")
    return [begin, *elided(lines), f"At {_at(failure.time_ns)} {name} was broken: {what}."]


def elided(lines: list[str]) -> list[str]:
    """The lines; of very many, those at both ends."""
    if len(lines) <= LINES_MAX:
        return lines
    half = LINES_MAX // 2
    return [*lines[:half], f"... and {len(lines) - 2 * half} more.", *lines[-half:]]


def _worth_telling(told: tuple[Event, ...]) -> list[Event]:
    """Repetitions say nothing new, and neither does the start of nodes at the very beginning."""
    found: list[Event] = []
    for event in told:
        time_ns, kind, _, _ = event
        if (kind == "start" and time_ns == 0) or kind not in SENTENCES:
            continue
        if found and found[-1][1:] == event[1:]:
            continue
        found.append(event)
    return found


def _at(time_ns: int) -> str:
    return f"{time_ns / 1e9:.3f} s"


def _sentence(event: Event, many_shards: bool) -> str:
    time_ns, kind, shard, facts = event
    where = f" (shard {shard})" if many_shards and shard >= 0 else ""
    return f"At {_at(time_ns)} {SENTENCES[kind](facts)}{where}."


def _nodes(nodes: Facts) -> str:
    words = [str(node) for node in nodes]
    if len(words) == 1:
        return f"node {words[0]}"
    return f"nodes {', '.join(words[:-1])} and {words[-1]}"


def _links(links: Facts) -> str:
    return ", ".join(f"{source} to {target}" for source, target in links)


def _crash(facts: Facts) -> str:
    node, lost, torn = facts
    if not lost:
        return f"node {node} crashed"
    entries = "entry" if lost == 1 else "entries"
    return f"node {node} crashed and lost {lost} unsynced {entries}" + (", one of them torn" if torn else "")


def _leads(facts: Facts) -> str:
    node, term, end, end_term = facts
    log = f"its log ended at {end} with an entry of term {end_term}" if end else "its log was empty"
    return f"node {node} was elected in term {term}, {log}"


def _operator(facts: Facts) -> str:
    kind, nodes, others, what = facts
    match kind:
        case "elect":
            wanted = f", node {nodes[0]}" if nodes[0] >= 0 else ""
            return f"an operator asked for another leader{wanted}"
        case "move":
            return f"an operator moved a replica from node {nodes[0]} to node {nodes[1]}"
        case "voters":
            listening = f", {_nodes(others)} listening" if others else ""
            return f"an operator made {_nodes(nodes)} the voters{listening}"
        case "transfer":
            return f"an operator asked the leader to hand over to node {nodes[0]}"
        case "commit":
            return f"an operator changed the commit rule to {what}"
        case "replicas":
            return f"an operator asked for {what} replicas"
        case _:
            return f"an operator gave the command {kind}" + (f" for {_nodes(nodes)}" if nodes else "")


def _members(facts: Facts) -> str:
    voters, outgoing, learners = facts
    text = f"{_nodes(voters)} were recorded as voters"
    if outgoing:
        text += f" together with those before, {_nodes(outgoing)}"
    return text + (f", and {_nodes(learners)} to listen" if learners else "")


def _voters(facts: Facts) -> str:
    node, state, *members = facts
    how = "went by new members" if state == "in force" else "had new members committed"
    return f"leader {node} {how}: {_members(tuple(members)).replace('were recorded as', 'as')}"


SENTENCES: dict[str, Callable[[Facts], str]] = {
    "start": lambda facts: f"node {facts[0]} started",
    "crash": _crash,
    "pause": lambda facts: f"node {facts[0]} was stopped until {_at(facts[1])}",
    "disk-failure": lambda facts: f"the disk of node {facts[0]} failed",
    "disk-full": lambda facts: f"the disk of node {facts[0]} was full, for {facts[1]} ms",
    "disk-room": lambda facts: f"the disk of node {facts[0]} had room again",
    "bit-flip": lambda facts: f"a bit flipped in the stored entry {facts[1]} of node {facts[0]}, unnoticed",
    "rotten": lambda facts: (
        f"node {facts[0]} read entry {facts[1]}, found it damaged and stopped its replica"
    ),
    "damage": lambda facts: f"the log of node {facts[0]} was found damaged at {facts[1]}",
    "wipe": lambda facts: f"node {facts[0]} came back with an empty disk",
    "partition": lambda facts: (
        f"{_nodes(facts[0])} and {_nodes(facts[1])} were cut off from each other for {facts[2]} ms"
    ),
    "one-way": lambda facts: f"nothing got through from {_links(facts[0])}, for {facts[1]} ms",
    "heal": lambda _: "all links worked again",
    "clog": lambda facts: f"messages from {facts[0]} to {facts[1]} waited for {facts[2]} ms",
    "trim": lambda facts: f"node {facts[0]} cut the head of its log up to {facts[1]}",
    "operator": _operator,
    "members": _members,
    "voters": _voters,
    "live": lambda facts: f"{_nodes(facts[0]) if facts[0] else 'nobody'} recorded as live, number {facts[1]}",
    "wants-live": lambda facts: (
        f"leader {facts[0]} proposed {_nodes(facts[1])} as live, in the place of record {facts[2]}"
    ),
    "lost-tail": lambda facts: (
        f"node {facts[0]} cut off [{facts[1]}, {facts[2]}), which it had acknowledged as leader"
    ),
    "unclean": lambda facts: (
        f"node {facts[0]} was appointed for term {facts[1]} though it may lack committed entries"
    ),
    "lost": lambda facts: f"what was committed from {facts[0]} on was lost, as the topic allows",
    "beyond-help": lambda _: "too many replicas had lost their data: the shard is rightly offline",
    "rule": lambda facts: f"node {facts[0]} commits by {facts[1]} from now on",
    "removed": lambda facts: f"node {facts[0]} removed its replica",
    "deleted": lambda _: "the topic was deleted",
    "leads": _leads,
    "serves": lambda facts: f"node {facts[0]} served clients in term {facts[1]}",
    "cuts": lambda facts: f"node {facts[0]} cut its log back from {facts[2]} to {facts[1]}",
    "resets": lambda facts: f"node {facts[0]} took over a snapshot up to {facts[1]}",
    "repaired": lambda facts: f"the log of node {facts[0]} was whole again",
    "liveness": lambda _: "all faults ended",
}
