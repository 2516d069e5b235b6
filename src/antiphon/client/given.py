"""What programs give to calls of the client, checked before it travels: a node would only say that it cannot read it."""

from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.errors import InvalidRequestError
from antiphon.model.rows import Version

Expected = int | Version | None
"""A version that a key must have: as a row has it, its id, or `ABSENT`; None: any."""
Setting = str | int | float | bool
Settings = Mapping[str, Setting]
"""Settings of a topic or table by Kafka's names; numbers and booleans become the texts that Kafka has."""


def meant(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A question that names what is most like a name that is unknown; without any, `otherwise`, or all that is known."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else otherwise or f"there is {', '.join(names)}"


def expected_id(given: Expected) -> int | None:
    """The id of an expected version. Raises InvalidRequestError."""
    if given is None or type(given) is int:
        return given
    if isinstance(given, Version):
        return given.id
    raise InvalidRequestError(
        f"expected_version is a version (row.version), its id, or antiphon.ABSENT, not {given!r}"
    )


def known_id(given: int | Version) -> int:
    """The same, where there has to be one."""
    found = expected_id(given)
    if found is None:
        raise InvalidRequestError(
            "expected_version is a version (row.version), its id, or antiphon.ABSENT, not None"
        )
    return found


def setting_text(name: Any, value: Any) -> str:
    """A setting as it travels. Raises InvalidRequestError."""
    if not isinstance(name, str):
        raise InvalidRequestError(f"config: names are text, such as 'retention.ms', not {name!r}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidRequestError(f"config: {name} is a text, a number or a boolean, not {value!r}")


def settings_text(config: Any) -> dict[str, str]:
    """Settings as they travel. Raises InvalidRequestError."""
    return {name: setting_text(name, value) for name, value in _pairs(config)}


def changes_text(config: Any) -> dict[str, str | None]:
    """The same of changes, where None puts a setting back to its default."""
    return {
        setting_name: None if value is None else setting_text(setting_name, value)
        for setting_name, value in _pairs(config)
    }


def _pairs(config: Any) -> list[tuple[Any, Any]]:
    if config is None:
        return []
    if not isinstance(config, Mapping):
        raise InvalidRequestError(f"config is a mapping such as {{'retention.ms': 60000}}, not {config!r}")
    return list(config.items())


def check_whole(**given: Any) -> None:
    """Raise InvalidRequestError for what is no whole number; None is not looked at."""
    for name, value in given.items():
        if value is not None and type(value) is not int:
            raise InvalidRequestError(f"{name} is a whole number, not {value!r}")


def check_text(**given: Any) -> None:
    """Raise InvalidRequestError for what is no text."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise InvalidRequestError(f"{name} is a text, not {value!r}")


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`; empty: there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b""


def key_range(start: bytes, end: bytes, prefix: bytes) -> tuple[bytes, bytes]:
    """From which key to before which a read goes. Raises InvalidRequestError for a prefix beside bounds."""
    if not prefix:
        return start, end
    if start or end:
        raise InvalidRequestError("give prefix, or start and end: a prefix is a range of its own")
    return prefix, prefix_end(prefix)
