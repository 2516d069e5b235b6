"""Damages each kind of file that a node has, in each way, starts the node, and records what becomes of it.

`python -m tests.node.damage_trials` runs all trials (`make damage`) and writes the tables of docs/damage.md. A trial is
judged here: the other nodes serve, nothing that was acknowledged is lost, nobody is answered wrongly, and the node either
starts or refuses to start in words that name the file.
"""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from antiphon.errors import AntiphonError
from antiphon.log.simulated_tree import Copy
from antiphon.model.findings import OF_NODE
from antiphon.node.node import Node
from antiphon.simulation.rocks_on_disk import RealFiles
from tests.node import damage_settings
from tests.node.damage_cluster import COUNT, TOPICS, Cluster, copies, files_of
from tests.node.damage_kinds import (
    EMPTY_ONES,
    EVERYWHERE,
    HARMS,
    KINDS,
    OF_POSITIONS,
    PATTERNS,
    PREPARED,
    READ_WHILE_RUNNING,
    RESET_TOPIC,
    VICTIM,
    Shards,
    disks_of,
    harm_file,
    neighbour,
    paths_on,
)
from tests.node.damage_outcomes import RUNNING, Trial
from tests.node.in_process import run

PATIENCE_S: Final = 40.0
SERVE_S: Final = 15.0
DOC: Final = Path(__file__).parents[2] / "docs" / "damage.md"
BEGIN, END = "<!-- trials -->", "<!-- end of trials -->"

PER_KIND: Final = {
    "segment": 4, "index": 4, "store: rows (.sst)": 3, "hard-state": 3, "snapshot (log)": 3,
    "store: CURRENT": 3, "store: MANIFEST": 3,
}  # fmt: skip


def all_trials(disks: dict[str, dict[int, Copy]], shards: Shards, per_kind: int = 2) -> Iterator[Trial]:
    """Every kind of file in every kind of damage, for some files of a kind."""
    for before, on_disks in disks.items():
        paths = files_of(on_disks[VICTIM])
        for kind, pattern in KINDS:
            if before == RUNNING and kind not in READ_WHILE_RUNNING:
                continue
            if kind in PREPARED:
                found = [PREPARED[kind](disks_of(on_disks, Random(0))[VICTIM], shards)]
            else:
                may_be_empty = kind in EMPTY_ONES
                found = [one for one in paths if re.fullmatch(pattern, one) and (paths[one] or may_be_empty)]
            count = 1 if before == RUNNING else PER_KIND.get(kind, per_kind)
            step = max(1, len(found) // count)
            for path in found[::step][:count]:
                for harm in HARMS:
                    if harm not in OF_POSITIONS or neighbour(kind, path, paths):
                        yield Trial(kind, path, harm, before)


# -- trials -----------------------------------------------------------------------------------------------------------


def found_cluster(files: RealFiles) -> tuple[dict[str, dict[int, Copy]], Cluster]:
    """What is on the disks of three nodes when they were killed, and when they were stopped; and what they held."""
    disks: dict[str, dict[int, Copy]] = {}
    clusters: list[Cluster] = []

    async def found() -> None:
        cluster = Cluster(files)
        clusters.append(cluster)
        await cluster.founded()
        disks["killed"] = copies(cluster)
        await cluster.close()
        disks["stopped"] = disks[RUNNING] = copies(cluster)

    run(found())
    clusters[0].let_go()
    return disks, clusters[0]


def try_out(trial: Trial, disks: dict[str, dict[int, Copy]], base: Cluster) -> Trial:
    """Damage the file, start all nodes, look."""

    async def test() -> None:
        draw = Random(f"{trial.path} {trial.harm} {trial.before}")
        restored = disks_of(disks[trial.before], draw)
        if trial.before != RUNNING:
            if trial.kind in PREPARED:
                for node_id, disk in restored.items():
                    if node_id == VICTIM or trial.kind in EVERYWHERE:
                        PREPARED[trial.kind](disk, base.shards)
            harm_file(trial.kind, trial.path, trial.harm, restored, draw)
        cluster = Cluster(base.files, restored)
        cluster.shards, cluster.early = base.shards, dict(base.early)
        if trial.kind == "reset":
            cluster.early[RESET_TOPIC] = 0  # what is left there begins where the snapshot was made
        cluster.wanted = {name: list(values) for name, values in base.wanted.items()}
        try:
            await _start(trial, cluster)
            if trial.before == RUNNING:
                await _harm_running(trial, cluster, draw)
            await _look(trial, cluster)
        finally:
            for node_id in list(cluster.nodes):
                cluster.kill(node_id)
            cluster.let_go()

    try:
        run(test())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this trial's outcome
        trial.wrong = trial.wrong or f"{type(error).__name__}: {error}"
    return trial


async def _start(trial: Trial, cluster: Cluster) -> None:
    for node_id in range(COUNT):
        try:
            await cluster.start(node_id)
        except (AntiphonError, OSError) as error:
            trial.refused = str(error)
            cluster.nodes.pop(node_id, None)
            cluster.servers.pop(node_id, None)
            if node_id != VICTIM:
                trial.wrong = f"node {node_id} did not start: {error}"


async def _harm_running(trial: Trial, cluster: Cluster, draw: Random) -> None:
    """Damage the file once all is well, and have the scrub read everything."""
    if not await _until(lambda: all(cluster.is_well(node) for node in cluster.nodes.values())):
        trial.wrong = "the nodes were not well before"
    if not cluster.disks[VICTIM].exists(trial.path):  # another one has taken its place meanwhile
        found = [one for one in paths_on(cluster.disks[VICTIM]) if re.fullmatch(PATTERNS[trial.kind], one)]
        trial.path = found[0] if found else trial.path
    harm_file(trial.kind, trial.path, trial.harm, cluster.disks, draw)
    victim = cluster.nodes[VICTIM]
    for host in victim.hosts.values():
        host.log.release_memory()
    victim.care.scrub.ask()


async def _look(trial: Trial, cluster: Cluster) -> None:
    """Write to everything, then wait until the damaged node is as it should be, and compare what all of them have."""
    try:
        for name in TOPICS:
            await cluster.write(name, SERVE_S)
        trial.served = True
    except (AntiphonError, OSError) as error:
        trial.wrong = f"{name} is not served: {error}"
        return
    victim = cluster.nodes.get(VICTIM)
    if victim is not None:
        trial.mended = await _until(lambda: _tell(trial, victim) or _is_read_and_well(cluster, victim))
    for node in cluster.nodes.values():
        if node is not victim and not await _until(lambda node=node: cluster.is_well(node)):  # type: ignore[misc]
            trial.wrong = f"node {node.node_id} is not well: {node.status().findings}"
        may_lag = node is victim and not trial.mended
        trial.wrong = trial.wrong or await cluster.what_is_wrong(node, may_lag=may_lag)


def _is_read_and_well(cluster: Cluster, node: Node) -> bool:
    """Has its scrub read everything, and is nothing wrong any more?"""
    scrub = node.care.scrub
    return (
        scrub.completed_ms > 0
        and not scrub.status.waiting
        and scrub.status.shard_id == OF_NODE
        and not node.care.findings.now
        and cluster.is_well(node)
    )


def _tell(trial: Trial, node: Node) -> bool:
    """Keep what the node says is wrong."""
    for one in node.status().findings:
        if one.kind not in trial.told:
            trial.told.append(one.kind)
    return False


async def _until(condition: Callable[[], bool]) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not condition():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(0.1)
    return True


def run_trials(
    choose: Callable[[list[Trial]], list[Trial]], told: Callable[[Trial], None] = lambda _: None
) -> list[Trial]:
    """Run those that `choose` takes of all trials; `told` hears of each."""
    structlog.configure(processors=[_quiet])
    files = RealFiles()
    try:
        disks, base = found_cluster(files)
        outcomes = []
        for trial in choose(list(all_trials(disks, base.shards))):
            outcomes.append(try_out(trial, disks, base))
            told(trial)
        return outcomes
    finally:
        files.close()
        structlog.reset_defaults()


def _quiet(_logger: object, _name: str, _event: Any) -> Any:
    raise structlog.DropEvent


# -- the table --------------------------------------------------------------------------------------------------------


def table(trials: Sequence[Trial]) -> str:
    """For docs/damage.md: of nodes that were started after the damage, and of nodes that ran."""
    started = [one for one in trials if one.before != RUNNING]
    running = [one for one in trials if one.before == RUNNING]
    refusals = sorted(
        {(one.kind, re.sub(r"0x\w+|\d{5,}", "N", one.refused)) for one in trials if one.refused}
    )
    lines = [f"Damaged while the nodes did not run, {len(started)} trials:", "", *_rows(started), ""]
    lines += [f"Damaged while they ran, {len(running)} trials:", "", *_rows(running), ""]
    lines += ["What the refused starts said:", ""]
    return "\n".join(lines + [f"- {kind}: `{text}`" for kind, text in refusals])


def _rows(trials: Sequence[Trial], known: dict[str, dict[str, str]] | None = None) -> list[str]:
    """The lines of a table; `known`: what it said before, by kind and way, which stays where nothing was tried now."""
    lines = ["| file | " + " | ".join(HARMS) + " |", "|---" * (len(HARMS) + 1) + "|"]
    known = known or {}
    for kind in dict.fromkeys([*known, *PATTERNS, *damage_settings.FILES]):
        cells = []
        for harm in HARMS:
            words = sorted({one.word for one in trials if (one.kind, one.harm) == (kind, harm)})
            cells.append(", ".join(words) or known.get(kind, {}).get(harm, "-"))
        if set(cells) != {"-"} or kind in known:
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def merged(old: str, trials: Sequence[Trial]) -> str:
    """The tables with what these trials say in the first one: in the rows of the same kinds, or behind all."""
    lines = old.split("\n")
    first = next(at for at, line in enumerate(lines) if line.startswith("|---")) + 1
    end = next((at for at in range(first, len(lines)) if not lines[at].startswith("|")), len(lines))
    ways = _cells(lines[first - 2])[1:]
    known = {kind: dict(zip(ways, words, strict=True)) for kind, *words in map(_cells, lines[first:end])}
    made = _rows([one for one in trials if one.before != RUNNING], known)
    return "\n".join([*lines[: first - 2], *made, *lines[end:]])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def say(trial: Trial) -> None:
    """One line for a person."""
    told = ", ".join(trial.told)
    words = (trial.word, trial.kind, trial.harm, trial.before, trial.path, told, trial.refused, trial.wrong)
    print(" | ".join(words), flush=True)


def main() -> int:
    """Run all, print each, write the table. Words of the command line choose kinds of files, or ways: then only what those
    trials say is written, of nodes that were started.
    """
    began, wanted = time.monotonic(), sys.argv[1:]

    def chosen(found: list[Trial]) -> list[Trial]:
        return [one for one in found if not wanted or any(w in one.kind or w == one.harm for w in wanted)]

    of_settings = damage_settings.run_trials(chosen, say)
    trials = run_trials(chosen, say) + of_settings
    bad = [one for one in trials if not one.is_good]
    print(f"{len(trials)} trials, {len(bad)} bad, {time.monotonic() - began:.0f} s")
    text = DOC.read_text()
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    new = merged(old.strip("\n"), trials) if wanted else table(trials)
    DOC.write_text(f"{head}{BEGIN}\n{new}\n{END}{tail}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
