"""The same work against Antiphon and its peers: three nodes each, on this machine, in turn, and the ratios.

A round starts each peer in turn, warms it up, measures the rows and stops it; several rounds follow one another. Peers'
programs are fetched once, into a folder outside of the repository ($ANTIPHON_PEERS). After every round OUT gets
`peers.json` (every figure of every round, with the machine and the settings), `peers.md` (tables with ratios) and
`peers.png`.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.peers import report
from tests.peers.measure import Figures, Measure
from tests.peers.rows import ROWS, Row, chosen
from tests.peers.servers import OURS, PEERS
from tests.peers.servers.peer import Peer, UnavailableError
from tests.peers.usage import may_drop_page_cache

CACHE_VARIABLE: Final = "ANTIPHON_PEERS"
SECONDS: Final = 5.0
ROUNDS: Final = 3
WARM: Final = ("produce/100B/16KB/3p/none", "mixed/64")
WARM_TRIES: Final = 8
WARM_GAIN: Final = 1.1

Say = Callable[[str], None]
T = TypeVar("T")


def cache_folder() -> Path:
    """Where peers' programs are kept."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "antiphon-peers")


def available(peers: Sequence[Peer], say: Say) -> tuple[list[Peer], dict[str, str]]:
    """Those whose programs are here, or could be fetched; and why the others are not."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    ready, skipped = [], {}
    for peer in peers:
        say(f"getting {peer.title}")
        try:
            peer.get(cache)
        except UnavailableError as error:
            skipped[peer.name] = str(error)
            say(f"without {peer.title}: {error}")
        else:
            ready.append(peer)
    return ready, skipped


class Run:
    """Rounds of rows over peers."""

    def __init__(self, peers: Sequence[Peer], rows: Sequence[Row], seconds: float, say: Say) -> None:
        self.peers = peers
        self.rows = rows
        self.seconds = seconds
        self._say = say
        self.skipped: dict[str, str] = {}
        self.found: dict[str, dict[str, list[Figures]]] = {row.name: {} for row in rows}

    def rounds(self, count: int, together: bool) -> Iterator[int]:
        """Measure everything so often; gives the number of rounds that are done."""
        if together:
            yield from self._together(count)
            return
        for number in range(count):
            for peer in _turned(self.peers, number):
                with self._started(peer) as measure:
                    for row in self.rows:
                        self._one(peer, measure, row)
            yield number + 1

    def _together(self, count: int) -> Iterator[int]:
        """All peers run at once, one of them works: what others do on the machine hits all peers alike."""
        with ExitStack() as running:
            measures = [(peer, running.enter_context(self._started(peer))) for peer in self.peers]
            for number in range(count):
                for at, row in enumerate(self.rows):
                    for peer, measure in _turned(measures, number + at):
                        self._one(peer, measure, row)
                yield number + 1

    @contextmanager
    def _started(self, peer: Peer) -> Iterator[Measure | None]:
        """A peer that runs and is warm; None where it does not start, or no row is for it."""
        protocols = {row.protocol for row in self.rows if self._possible(peer, row)}
        running = None
        if protocols:
            self._say(f"starting {peer.title}")
            try:
                running = peer.start()
            except UnavailableError as error:
                self._skip(peer.name, str(error))
        if running is None:
            yield None
            return
        try:
            measure = Measure(peer, running, self.seconds)
            self._warm(peer, measure, protocols)
            yield measure
        finally:
            running.stop()

    def _possible(self, peer: Peer, row: Row) -> bool:
        if row.protocol not in peer.clients:
            return False
        work = row.job["work"]
        if work in peer.lacks:
            self.skipped[f"{row.name}, {peer.name}"] = peer.lacks[work]
            return False
        if row.cold and not may_drop_page_cache():
            self.skipped[row.name] = "this user may not drop the page cache"
            return False
        return True

    def _skip(self, what: str, why: str) -> None:
        self.skipped[what] = why
        self._say(f"  {what} failed: {why}")

    def _warm(self, peer: Peer, measure: Measure, protocols: set[str]) -> None:
        """Repeat a row of each protocol until it gets no faster: compilers that work at run time take their time."""
        for name in WARM:
            best, tries, faster = 0.0, 0, ROWS[name].protocol in protocols
            while faster and tries < WARM_TRIES:
                tries += 1
                try:
                    rate = measure.row(ROWS[name])["rate"]
                except UnavailableError as error:
                    self._skip(f"warm-up, {peer.name}", str(error))
                    break
                faster, best = rate > best * WARM_GAIN, max(best, rate)

    def _one(self, peer: Peer, measure: Measure | None, row: Row) -> None:
        if measure is None or not self._possible(peer, row):
            return
        try:
            found = measure.row(row)
        except UnavailableError as error:
            self._skip(f"{row.name}, {peer.name}", str(error))
            return
        self.found[row.name].setdefault(peer.name, []).append(found)
        half = f", p50 {found['p50_ms']:.2f} ms" if "p50_ms" in found else ""
        bad = f", {found['failed']} FAILED" if found["failed"] else ""
        self._say(f"  {peer.name:<10} {row.name:<32} {found['rate']:>11,.0f} {row.unit}/s{half}{bad}")


def _turned(items: Sequence[T], by: int) -> Sequence[T]:
    turn = by % len(items)
    return [*items[turn:], *items[:turn]]


def machine() -> dict[str, Any]:
    """What the figures were made on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": platform.machine(),
    }


def compare(
    run: Run, rounds: int, together: bool, missing: dict[str, str], note: str
) -> Iterator[dict[str, Any]]:
    """What goes into `peers.json`, after every round."""
    began, load = time.time(), os.getloadavg()[0]
    for done in run.rounds(rounds, together):
        yield {
            "machine": machine() | {"load_before": load},
            "settings": {"seconds": run.seconds, "rounds": done, "together": together, "note": note},
            "took_s": round(time.time() - began),
            "peers": {peer.name: {"title": peer.title, "settings": peer.settings} for peer in run.peers},
            "skipped": missing | run.skipped,
            "rows": {
                row.name: {
                    "unit": row.unit,
                    "protocol": row.protocol,
                    "job": row.job,
                    "clients": row.clients,
                    "peers": run.found[row.name],
                }
                for row in run.rows
                if run.found[row.name]
            },
        }


def write(out: Path, result: dict[str, Any]) -> str:
    """Write the figures, the tables and the picture; returns the tables."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result, OURS)
    (out / "peers.md").write_text(text)
    report.draw(out / "peers.png", result, OURS)
    return text


def main() -> None:
    """Entry point of `make bench-peers`."""
    parser = argparse.ArgumentParser(
        prog="make bench-peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rows", help="shell patterns of rows, separated by commas (default: the usual rows)"
    )
    parser.add_argument("--peers", help=f"names, separated by commas, of {', '.join(PEERS)} (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long each row works (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="how often everything is done (%(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("peers"), help="folder for the results (%(default)s)"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="run all peers at once and change with every row,\nfor machines on which others work, too",
    )
    parser.add_argument("--note", default="", help="conditions to be told with the results")
    parser.add_argument("--list", action="store_true", help="say which rows and peers there are")
    given = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    if given.list:
        say("\n".join(f"{'*' if row.usual else ' '} {row.name}" for row in ROWS.values()))
        say("\n".join(f"  peer {peer.name}: {peer.title}, {peer.settings}" for peer in PEERS.values()))
        return
    names = given.peers.split(",") if given.peers else list(PEERS)
    unknown = [name for name in names if name not in PEERS]
    rows = chosen(given.rows)
    if unknown or not rows:
        parser.error(f"no peer {unknown[0]!r}" if unknown else f"no row matches {given.rows!r} (see --list)")
    if given.seconds <= 0 or given.rounds < 1:
        parser.error("--seconds and --rounds must be above zero")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ready, missing = available([PEERS[name] for name in names], say)
    run = Run(ready, rows, given.seconds, say)
    for result in compare(run, given.rounds, given.together, missing, given.note):
        text = write(given.out, result)
        say(f"\n{text}\nround {result['settings']['rounds']} of {given.rounds} is in {given.out}/")


if __name__ == "__main__":
    main()
