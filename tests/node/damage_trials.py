"""Damages each kind of file that a node has, in each way, starts the node, and records what becomes of it.

`python -m tests.node.damage_trials` runs all trials (`make damage`) and writes the tables of docs/damage.md. A trial is
judged here: the other nodes serve, nothing that was acknowledged is lost, nobody is answered wrongly, and the node either
starts or refuses to start in words that name the file.
"""

import asyncio
import errno
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from antiphon.errors import AntiphonError
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.simulated_faults import Fault
from antiphon.log.simulated_tree import Copy
from antiphon.node.node import Node
from antiphon.simulation.rocks_on_disk import RealFiles
from tests.node.damage_cluster import COUNT, FOLDERS, TOPICS, Cluster, copies, files_of
from tests.node.in_process import DIRECTORY, KEY_FILE, run

VICTIM: Final = 1
HARMS: Final = ("flip", "cut", "extend", "zero", "swap", "duplicate", "delete", "empty", "forbid")
PATIENCE_S: Final = 40.0
SERVE_S: Final = 15.0
PAGE_BYTES: Final = 512
DOC: Final = Path(__file__).parents[2] / "docs" / "damage.md"
BEGIN, END = "<!-- trials -->", "<!-- end of trials -->"

TO_DO: Final = ("restore", "give", "move", "start", "copy")  # a refusal says what to do

KINDS: Final[tuple[tuple[str, str], ...]] = (
    ("identity.json", rf"{DIRECTORY}/identity\.json"),
    ("inventory", rf"{DIRECTORY}/inventory"),
    ("inventory.copy", rf"{DIRECTORY}/inventory\.copy"),
    ("joined", rf"{DIRECTORY}/joined"),
    ("lock", rf"{DIRECTORY}/lock"),
    ("scrub", rf"{DIRECTORY}/scrub"),
    ("peer.key", KEY_FILE),
    ("`__cluster`: segment", rf"{DIRECTORY}/shards/0/\d+\.log"),
    ("`__cluster`: index", rf"{DIRECTORY}/shards/0/\d+\.index"),
    ("`__cluster`: snapshot", rf"{DIRECTORY}/shards/0/\d+\.snapshot"),
    ("`__cluster`: hard-state", rf"{DIRECTORY}/shards/0/hard-state"),
    ("segment", rf"{DIRECTORY}/shards/[1-9]\d*/\d+\.log"),
    ("index", rf"{DIRECTORY}/shards/[1-9]\d*/\d+\.index"),
    ("aborted transactions", rf"{DIRECTORY}/shards/[1-9]\d*/\d+\.aborted"),
    ("snapshot (log)", rf"{DIRECTORY}/shards/[1-9]\d*/\d+\.snapshot"),
    ("start", rf"{DIRECTORY}/shards/\d+/start"),
    ("hard-state", rf"{DIRECTORY}/shards/[1-9]\d*/hard-state"),
    ("high-watermark", rf"{DIRECTORY}/shards/\d+/high-watermark"),
    ("led-term", rf"{DIRECTORY}/shards/\d+/led-term"),
    ("placement", rf"{DIRECTORY}/shards/\d+/placement"),
    ("origins", rf"{DIRECTORY}/shards/\d+/origins"),
    ("store: CURRENT", rf"{DIRECTORY}/tables/\d+/CURRENT"),
    ("store: MANIFEST", rf"{DIRECTORY}/tables/\d+/MANIFEST-\d+"),
    ("store: rows (.sst)", rf"{DIRECTORY}/tables/\d+/\d+\.sst"),
    ("store: OPTIONS", rf"{DIRECTORY}/tables/\d+/OPTIONS-\d+"),
    ("store: IDENTITY", rf"{DIRECTORY}/tables/\d+/IDENTITY"),
    ("arriving snapshot", rf"{DIRECTORY}/snapshots/receive-\d+/.*"),
)
PER_KIND: Final = {"segment": 4, "index": 4, "store: rows (.sst)": 3, "hard-state": 3, "snapshot (log)": 3}


@dataclass
class Trial:
    """One file of one node, damaged in one way, after the nodes were `stopped` or `killed`; and what came of it."""

    kind: str
    path: str
    harm: str
    before: str
    refused: str = ""
    served: bool = False
    told: list[str] = field(default_factory=list)
    mended: bool = False
    wrong: str = ""

    @property
    def is_good(self) -> bool:
        """Was nothing lost, nobody answered wrongly, nobody kept from serving, and all told that had to be?"""
        if self.wrong or not self.served:
            return False
        if self.refused:
            return os_name(self.path) in self.refused and any(word in self.refused for word in TO_DO)
        return self.mended or bool(self.told)

    @property
    def word(self) -> str:
        """For the table."""
        if not self.is_good:
            return "BAD"
        if self.refused:
            return "refused"
        if self.mended:
            return "mended" if self.told else "as before"
        return "told"


def os_name(path: str) -> str:
    """The file's name."""
    return path.rsplit("/", 1)[1]


# -- damage -----------------------------------------------------------------------------------------------------------


def all_trials(disks: dict[str, dict[int, Copy]], per_kind: int = 2) -> Iterator[Trial]:
    """Every kind of file in every kind of damage, for some files of a kind."""
    for before, on_disks in disks.items():
        paths = files_of(on_disks[VICTIM])
        for kind, pattern in KINDS:
            found = [
                path for path in paths if re.fullmatch(pattern, path) and (paths[path] or kind == "joined")
            ]
            count = PER_KIND.get(kind, per_kind)
            step = max(1, len(found) // count)
            for path in found[::step][:count]:
                for harm in HARMS:
                    yield Trial(kind, path, harm, before)


def harm_file(trial: Trial, disks: dict[int, SimulatedDisk], draw: Random) -> None:
    """Do it, on the victim's disk."""
    disk, path = disks[VICTIM], trial.path
    data = bytes(disk.durable(path) or b"")
    match trial.harm:
        case "flip" if data:
            disk.flip_bit(path, draw.randrange(8 * len(data)))
        case "cut":
            disk.restore(path, data[: len(data) // 2])
        case "extend":
            disk.restore(path, data + draw.randbytes(64))
        case "zero":
            at = draw.randrange(max(1, len(data) - PAGE_BYTES + 1))
            zeros = bytes(min(PAGE_BYTES, len(data) - at))
            disk.restore(path, data[:at] + zeros + data[at + len(zeros) :])
        case "swap":
            other_disk, other = _another(trial, disks)
            disk.restore(path, bytes(other_disk.durable(other) or b""))
            other_disk.restore(other, data) if other_disk is disk else None
        case "duplicate":
            disk.restore(_twin(path), data)
        case "delete":
            disk.lose(path)
        case "empty":
            disk.restore(path, b"")
        case "forbid":
            disk.faults.append(Fault(("open", "read"), errno.EACCES, path))


def _another(trial: Trial, disks: dict[int, SimulatedDisk]) -> tuple[SimulatedDisk, str]:
    """A file of the same kind of another shard; elsewhere the same file of another node."""
    pattern = next(pattern for kind, pattern in KINDS if kind == trial.kind)
    disk, folder = disks[VICTIM], trial.path.rsplit("/", 1)[0]
    for path in files_of({name: disk.copy(f"/{name}") for name in FOLDERS}):
        if re.fullmatch(pattern, path) and not path.startswith(folder + "/"):
            return disk, path
    other = disks[(VICTIM + 1) % COUNT]
    return (other, trial.path) if other.exists(trial.path) else (disk, trial.path)


def _twin(path: str) -> str:
    """A name under which a copy could be taken for another file of the same kind."""
    folder, name = path.rsplit("/", 1)
    number = re.match(r"\d{6,20}", name)
    if number is None:
        return f"{path}.copy"
    return f"{folder}/{int(number[0]) + 1:0{len(number[0])}d}{name[len(number[0]) :]}"


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
        disks["stopped"] = copies(cluster)

    run(found())
    clusters[0].let_go()
    return disks, clusters[0]


def try_out(trial: Trial, disks: dict[str, dict[int, Copy]], base: Cluster) -> Trial:
    """Damage the file, start all nodes, look."""

    async def test() -> None:
        draw = Random(f"{trial.path} {trial.harm} {trial.before}")
        restored = {}
        for node_id, copy in disks[trial.before].items():
            restored[node_id] = SimulatedDisk(Random(draw.getrandbits(64)))
            for folder in FOLDERS:
                restored[node_id].restore(f"/{folder}", copy[folder])  # type: ignore[call-overload]
        harm_file(trial, restored, draw)
        cluster = Cluster(base.files, restored)
        cluster.shards, cluster.early = base.shards, base.early
        cluster.wanted = {name: list(values) for name, values in base.wanted.items()}
        try:
            await _start(trial, cluster)
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
        for trial in choose(list(all_trials(disks))):
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
    """For docs/damage.md."""
    lines = ["| file | " + " | ".join(HARMS) + " |", "|---" * (len(HARMS) + 1) + "|"]
    for kind, _ in KINDS:
        cells = []
        for harm in HARMS:
            words = sorted({one.word for one in trials if (one.kind, one.harm) == (kind, harm)})
            cells.append(", ".join(words) or "-")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    refusals = sorted(
        {(one.kind, re.sub(r"0x\w+|\d{5,}", "N", one.refused)) for one in trials if one.refused}
    )
    lines += ["", f"{len(trials)} trials. What the refused starts said:", ""]
    lines += [f"- {kind}: `{text}`" for kind, text in refusals]
    return "\n".join(lines)


def say(trial: Trial) -> None:
    """One line for a person."""
    told = ", ".join(trial.told)
    words = (trial.word, trial.kind, trial.harm, trial.before, trial.path, told, trial.refused, trial.wrong)
    print(" | ".join(words), flush=True)


def main() -> int:
    """Run all, print each, write the table. Words of the command line choose kinds of files, and then nothing is written."""
    began, wanted = time.monotonic(), sys.argv[1:]
    trials = run_trials(
        lambda found: [one for one in found if not wanted or any(word in one.kind for word in wanted)], say
    )
    bad = [one for one in trials if not one.is_good]
    print(f"{len(trials)} trials, {len(bad)} bad, {time.monotonic() - began:.0f} s")
    if not wanted:
        text = DOC.read_text()
        head, _, rest = text.partition(BEGIN)
        DOC.write_text(f"{head}{BEGIN}\n{table(trials)}\n{END}{rest.partition(END)[2]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
