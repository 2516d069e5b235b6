"""Runs many seeds of whole nodes and goes on after one that breaks a promise; `antiphon simulate` stops there.

    python -m tests.simulation.campaign FIRST COUNT [--workers N] [--out FILE]

Every seed is a line of JSON in FILE: seed, profile, simulated seconds, the broken promise if any. A campaign that was
stopped goes on where it was if it is started with the same FILE. At the end: seeds by profile, and those that failed.
"""

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from antiphon.simulation.cluster.run import ClusterResult
from antiphon.simulation.cluster.runner import ClusterJob, run_jobs


def _row(result: ClusterResult) -> dict[str, Any]:
    failure = result.failure
    return {
        "seed": result.options.seed,
        "profile": result.options.profile,
        "simulated_s": round(result.simulated_s, 3),
        "broken": None if failure is None else failure.invariant,
        "message": None if failure is None else failure.message,
    }


def _known(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _summary(rows: list[dict[str, Any]], seconds: float) -> str:
    profiles = Counter(row["profile"] for row in rows)
    failed = [row for row in rows if row["broken"]]
    lines = [
        f"{len(rows)} seeds, {sum(row['simulated_s'] for row in rows):,.0f} s of clusters, {seconds:,.0f} s now",
        ", ".join(f"{name} {count}" for name, count in sorted(profiles.items())),
        f"{len(failed)} broke a promise",
        *(f"  {row['profile']} {row['seed']}: {row['message']}" for row in failed),
    ]
    return "\n".join(lines)


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one per core")
    parser.add_argument("--out", type=Path, default=Path("campaign.jsonl"))
    given = parser.parse_args()
    rows = _known(given.out)
    done = {row["seed"] for row in rows}
    wanted = [seed for seed in range(given.first, given.first + given.count) if seed not in done]
    began = time.monotonic()
    with given.out.open("a") as file:
        for result in run_jobs((ClusterJob(seed) for seed in wanted), given.workers or os.cpu_count() or 1):
            rows.append(_row(result))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
            if rows[-1]["broken"] or len(rows) % 50 == 0:
                print(f"{len(rows)} of {given.count}: {rows[-1]['broken'] or 'sound'}", flush=True)
    print(_summary(rows, time.monotonic() - began))


if __name__ == "__main__":
    main()
