"""An option for each kind of lake table: `--to-NAME PLACE`, from the rows of `lake.targets.kinds`."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Final

import typer

from antiphon.lake.targets.kinds import KINDS

_PARAMETERS: Final = {f"to_{name}": kind for name, kind in KINDS.items()}
FLAGS: Final = tuple(f"--to-{name}" for name in KINDS)


def takes_lake_targets(command: Callable[..., None]) -> Callable[..., None]:
    """In the place of its parameter `to_lakes`, the command gets an option for each kind; `to_lakes` are those given."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += _options() if parameter.name == "to_lakes" else [parameter]

    @wraps(command)
    def wrapped(**given: Any) -> None:
        places = {kind.name: given.pop(name) for name, kind in _PARAMETERS.items()}
        lakes = [f"{name}:{place}" for name, place in places.items() if place is not None]
        command(**given, to_lakes=lakes)

    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped


def _options() -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[str | None, typer.Option(help=kind.called)],
        )
        for name, kind in _PARAMETERS.items()
    ]
