"""An option for each kind of lake table: `--to-NAME PLACE`, from the rows of `lake.targets.kinds`; and `--to-option`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from antiphon.cli.declare import with_options_for
from antiphon.cli.output import usage
from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.kinds import KINDS, OPTIONS, options_of

_PARAMETERS: Final = {f"to_{name}": kind for name, kind in KINDS.items()}
FLAGS: Final = tuple(f"--to-{name}" for name in KINDS)
OPTION: Final = "--to-option"
_IN_PLACE: Final = ("kind", "path", "table")  # said by PLACE


def takes_lake_targets(command: Callable[..., None]) -> Callable[..., None]:
    """In the place of its parameter `to_lakes`, the command gets an option for each kind; `to_lakes` are those given."""
    words = (
        "NAME=VALUE of the lake table, such as partition_by=day or properties.NAME=VALUE; may be repeated."
    )
    kinds = [(name, str | None, kind.called) for name, kind in _PARAMETERS.items()]
    options = {
        name: (Annotated[hint, typer.Option(help=help_text)], None)
        for name, hint, help_text in (*kinds, ("to_option", list[str] | None, words))
    }
    return with_options_for(command, "to_lakes", options, _lakes)


def _lakes(*given: Any) -> list[Any]:
    *places, said = given
    lakes = [f"{name}:{place}" for name, place in zip(KINDS, places, strict=True) if place is not None]
    if said and not lakes:
        usage(f"{OPTION} is for a lake table: give one of {', '.join(FLAGS)}")
    return [_with_options(one, said) for one in lakes] if said else lakes


def _with_options(place: str, said: Sequence[str]) -> dict[str, Any]:
    """`KIND:PLACE` and `NAME=VALUE`, or `NAME.KEY=VALUE` for options that are mappings, as the mapping of a target."""
    try:
        kind, options = options_of(place)
        target: dict[str, Any] = {"kind": kind.name, **options}
        for text in said:
            name, equals, value = text.partition("=")
            option, dot, key = name.partition(".")
            takes = OPTIONS.get(option, ())
            if not equals or option in _IN_PLACE or (dict in takes and str not in takes and not dot):
                usage(
                    f"{OPTION} is NAME=VALUE, such as partition_by=day or properties.owner=us, not {text!r}"
                )
            if dot and dict in takes:
                target[option] = {**_mapping(target.get(option)), key: value}
            else:
                target[name] = value
        options_of(target)
    except InvalidRequestError as error:
        usage(error.message)
    return target


def _mapping(found: Any) -> dict[str, Any]:
    """What a mapping has so far; a catalog's name is its `name`."""
    return {"name": found} if isinstance(found, str) else dict(found or {})
