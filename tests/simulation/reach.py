"""How much of the product whole-node simulation reaches by itself, line by line.

    python -m tests.simulation.reach [--missing PACKAGE]

Runs seeds that together hold every profile and every option that is drawn, and counts the lines of `node/`,
`partition/`, `log/`, `table/`, `kafka/`, `client/` and others that were executed in simulated processes. `--missing` lists
what was not, by function. Every line is traced: it is several times as slow as a run.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import antiphon
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster

ROOT: Final = Path(antiphon.__file__).parent
PACKAGES: Final = (
    "node", "partition", "native", "transport", "server", "log", "table", "kafka", "oxia", "client", "http", "gateway",
    "backup", "replication", "coordination",
)  # fmt: skip
ALWAYS: Final = ("seed", "profile")
AMONG: Final = 2_000
TIMES: Final = 6


class Reach:
    """Lines that were executed, by file."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}
        self._wanted: dict[CodeType, set[int] | None] = {}

    def trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """A function begins; see `sys.settrace`."""
        code = frame.f_code
        if code not in self._wanted:
            path = code.co_filename
            inside = path.startswith(str(ROOT)) and Path(path).relative_to(ROOT).parts[0] in PACKAGES
            self._wanted[code] = self.lines.setdefault(path, set()) if inside else None
        found = self._wanted[code]
        if found is None:
            return None
        found.add(frame.f_lineno)

        def line(inner: FrameType, _event: str, _argument: Any) -> Any:
            found.add(inner.f_lineno)
            return line

        return line


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def functions_of(path: Path) -> dict[str, set[int]]:
    """Lines that can be executed, by the function that they belong to; what runs at import is left out."""
    module = compile(path.read_text(), str(path), "exec")
    classes = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}
    found: dict[str, set[int]] = {}
    for code in _codes(module):
        if code is module or code.co_name in classes:
            continue
        lines = {line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno}
        if lines:
            found.setdefault(code.co_qualname, set()).update(lines)
    return found


def held_by(seed: int) -> set[str]:
    """What a seed's world has: its profile, and the options that are not left out."""
    options = draw_options(seed)
    on = {
        field.name for field in fields(options) if field.name not in ALWAYS and getattr(options, field.name)
    }
    return {*on, f"profile {options.profile}"}


def seeds_that_hold_all(among: int = AMONG) -> list[int]:
    """Few of the first seeds that hold, at least `TIMES`, all that any of these holds: the one next that adds most."""
    held = {seed: held_by(seed) for seed in range(1, among + 1)}
    everything = set().union(*held.values())
    chosen: list[int] = []
    for _ in range(TIMES):
        missing = set(everything)
        while missing:
            best = max(held, key=lambda seed: (len(held[seed] & missing), -seed))
            chosen.append(best)
            missing -= held.pop(best)
    return chosen


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="lines of the product that whole-node simulation reaches")
    parser.add_argument(
        "--missing", default="", help="list the functions of this package that are not reached"
    )
    asked = parser.parse_args()
    reach = Reach()
    for seed in seeds_that_hold_all():
        options = draw_options(seed)
        print(f"seed {seed}: {options.profile}", file=sys.stderr, flush=True)
        sys.settrace(reach.trace)
        try:
            result = run_cluster(options)
        finally:
            sys.settrace(None)
        if result.failure is not None:
            print(f"seed {seed}: {result.failure.message}", file=sys.stderr)
    print("| package | lines | reached | share |\n|---|---|---|---|")
    for package in PACKAGES:
        total = reached = 0
        for path in sorted((ROOT / package).rglob("*.py")):
            done = reach.lines.get(str(path), set())
            for name, lines in functions_of(path).items():
                total += len(lines)
                reached += len(lines & done)
                if package == asked.missing and len(lines & done) < len(lines) / 2:
                    print(
                        f"{path.relative_to(ROOT)} {name}: {len(lines & done)} of {len(lines)}",
                        file=sys.stderr,
                    )
        print(f"| `{package}/` | {total} | {reached} | {100 * reached / max(1, total):.0f} % |")


if __name__ == "__main__":
    main()
