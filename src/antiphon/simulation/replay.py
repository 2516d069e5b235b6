"""A failing run as a file: options, plant and the faults that are left, to be run again as they are."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from antiphon.errors import InvalidRequestError
from antiphon.simulation.faults import Fault
from antiphon.simulation.options import SimulationOptions
from antiphon.simulation.plants import PLANTS
from antiphon.simulation.runner import RunResult, run_seed


class Recipe(msgspec.Struct, frozen=True):
    """All that a run needs."""

    options: dict[str, Any]
    faults: tuple[Fault, ...]
    plant: str | None = None


def save(path: Path, result: RunResult, plant: str | None) -> None:
    """Write a run down, as JSON that people can read and change."""
    recipe = Recipe(asdict(result.options), result.schedule, plant)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(recipe), indent=1) + b"\n")


def replay(path: Path) -> tuple[RunResult, str | None]:
    """Run what was written down; returns the plant's name too. Raises InvalidRequestError for what makes no run."""
    try:
        recipe = msgspec.json.decode(path.read_bytes(), type=Recipe)
        options = SimulationOptions(**recipe.options)
        plant = None if recipe.plant is None else PLANTS[recipe.plant]
    except (OSError, msgspec.MsgspecError, TypeError, KeyError) as error:
        raise InvalidRequestError(f"{path} is no recipe of a run: {error}") from None
    return run_seed(options, plant, schedule=recipe.faults), recipe.plant
