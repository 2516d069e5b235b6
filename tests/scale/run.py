"""What things cost as they grow, on this machine: shards, connections, a log, a table, replicas.

    python -m tests.scale.run [AXIS...] [--seconds S] [--largest N] [--out FOLDER]

FOLDER gets `scale.json` (all figures, with the machine), `scale.md` (a table for each axis) and `scale.png`. All of it takes
about 20 minutes, and 35 GB of disk for the longest log.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from antiphon.cli.bench import machine
from tests.scale import plot
from tests.scale.axes import AXES

SECONDS: Final = 3.0


def markdown(found: dict[str, list[dict[str, Any]]]) -> str:
    """A table for each axis."""
    parts = []
    for name, rows in found.items():
        names = [key for key in rows[0] if key != "size"]
        lines = [f"| {AXES[name].title} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        lines += ["| " + " | ".join(f"{row[key]:,}" for key in ("size", *names)) + " |" for row in rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def measure(axes: Sequence[str], seconds: float, largest: int, out: Path) -> dict[str, list[dict[str, Any]]]:
    """Measure, and write what there is after each size: a run that is stopped leaves its figures."""
    found: dict[str, list[dict[str, Any]]] = {}
    began = time.monotonic()
    for name in axes:
        sizes = tuple(size for size in AXES[name].sizes if size <= largest)
        measured = AXES[name].measure(sizes, seconds)
        for size in sizes:
            sys.stderr.write(f"{time.monotonic() - began:7.1f} s  {AXES[name].title}: {size:,}\n")
            found.setdefault(name, []).append({"size": size, **next(measured)})
            out.mkdir(parents=True, exist_ok=True)
            result = {"machine": machine(), "seconds": seconds, "found": found}
            (out / "scale.json").write_text(json.dumps(result, indent=1))
            (out / "scale.md").write_text(markdown(found))
        for _ in measured:
            raise AssertionError("there are figures of a size that nobody asked for")
    plot.draw(out / "scale.png", found)
    return found


def main() -> None:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__.splitlines()[0])
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(AXES)}; none: all of them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement with clients")
    parser.add_argument("--largest", type=int, default=1 << 40, help="leave larger sizes out")
    parser.add_argument("--out", type=Path, default=Path("scale"), help="folder of the results")
    asked = parser.parse_args()
    unknown = [name for name in asked.axes if name not in AXES]
    if unknown:
        parser.error(f"nothing is called {unknown[0]!r}; there are {', '.join(AXES)}")
    found = measure(asked.axes or list(AXES), asked.seconds, asked.largest, asked.out)
    sys.stdout.write(markdown(found))


if __name__ == "__main__":
    main()
