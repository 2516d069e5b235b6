"""A failing run of whole nodes as a file: options, mutant and the faults that are left, to be run again as they are."""

from pathlib import Path
from typing import Final

import msgspec

from antiphon.errors import InvalidRequestError
from antiphon.simulation.cluster.faults import KINDS, Fault
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS, mutated, name_now
from antiphon.simulation.cluster.options import ClusterOptions
from antiphon.simulation.cluster.run import ClusterResult, run_cluster

WORLD: Final = "nodes"


class ClusterRecipe(msgspec.Struct, frozen=True, tag=WORLD, tag_field="world"):
    """All that a run needs."""

    options: ClusterOptions
    faults: tuple[Fault, ...]
    mutant: str | None = None


def save(path: Path, result: ClusterResult, mutant: str | None) -> None:
    """Write a run down, as JSON that people can read and change."""
    recipe = ClusterRecipe(result.options, result.schedule, mutant)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(recipe), indent=1) + b"\n")


def replay(path: Path) -> tuple[ClusterResult, str | None]:
    """Run what was written down; returns the mutant's name too. Raises InvalidRequestError for what makes no run."""
    try:
        recipe = msgspec.json.decode(path.read_bytes(), type=ClusterRecipe)
        _require_known(recipe)
        mutant = None if recipe.mutant is None else CLUSTER_MUTANTS[name_now(recipe.mutant)]
    except (OSError, msgspec.MsgspecError, KeyError, ValueError) as error:
        raise InvalidRequestError(f"{path} is no recipe of a run: {error}") from None
    result = run_cluster(recipe.options, mutated=mutated(mutant), schedule=recipe.faults)
    return result, recipe.mutant


def _require_known(recipe: ClusterRecipe) -> None:
    """Raise ValueError for a fault that cannot be carried out."""
    for fault in recipe.faults:
        if fault.kind not in KINDS:
            raise ValueError(f"there is no fault {fault.kind}")
        if not fault.nodes or not all(0 <= node < recipe.options.nodes for node in fault.nodes):
            raise ValueError(f"{fault.kind} at {fault.at_ms} ms concerns nodes {fault.nodes}")
