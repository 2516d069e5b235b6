"""Forms of actions, made from the types that the API has of them: what may be said, how it is asked for and read."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from antiphon.coordination.profiles import PROFILES
from antiphon.errors import UNDECODABLE, InvalidRequestError
from antiphon.http.api import document
from antiphon.http.api.routes import ROUTES, Route
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardMeta

StructT = TypeVar("StructT", bound=msgspec.Struct)
LINES_MAX: Final = 100
TAKES_AWAY: Final = "name=value, one a line; name= alone takes a value away"
AGAIN: Final = "_again"  # behind the name of a secret: the same once more
_NODES: Final = ("node", "from_node", "to_node")


class Field(NamedTuple):
    """One thing that is asked for.

    Attributes:
        kind: text, number, check, choice, lines (`name=value`, one a line), numbers (joined by commas) or password.
        value: what stands in it now, as text.
        choices: of a choice: each value, and how it is shown.
        fixed: it was said by where the form was opened.
        fractions: of a number: it may have some.
    """

    name: str
    kind: str
    about: str
    value: str
    choices: tuple[tuple[str, str], ...] = ()
    least: int | None = None
    most: int | None = None
    required: bool = False
    fixed: bool = False
    fractions: bool = False

    @property
    def label(self) -> str:
        """The name for people."""
        return self.name.replace("_", " ")


def fields_of(
    route: Route, given: Mapping[str, str], meta: ClusterMeta, shard: ShardMeta | None
) -> list[Field]:
    """The fields of an action's form, with what was given for them. `shard`: the one that it is about."""
    found = []
    for name in route.in_path:
        value = given.get(name, "")
        found.append(Field(name, "text", "", value, required=True, fixed=bool(value)))
    for name, schema in _body_fields(route).items():
        if not _is_secret(schema):
            found.append(_field(name, schema, given, meta, shard))
    return found


def secrets_of(route: Route) -> list[Field]:
    """The fields that are asked for with the plan only, each twice; they never have a value."""
    return [
        Field(each, "password", "", "", most=schema.get("maxLength"), required=True)
        for name, schema in _body_fields(route).items()
        if _is_secret(schema)
        for each in (name, name + AGAIN)
    ]


def without_secrets(given: Mapping[str, str]) -> dict[str, str]:
    """What was given but for secrets, whatever form they are sent to: nothing else is ever shown again."""
    return {name: value for name, value in given.items() if name not in SECRETS}


def _is_secret(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("writeOnly"))


def _body_fields(route: Route) -> dict[str, Any]:
    return {} if route.body is None else document.fields_of(route.body)


def _field(
    name: str, schema: Mapping[str, Any], given: Mapping[str, str], meta: ClusterMeta, shard: ShardMeta | None
) -> Field:
    about = str(schema.get("description", ""))
    one = _some(schema)
    default = schema.get("default")
    value = given.get(name, "" if default in (None, "", {}, []) else str(default))
    if name in _NODES:
        choices = tuple(_nodes(name, meta, shard, with_any=int(one.get("minimum", 0)) < 0))
        return Field(name, "choice", "" if choices else "no node fits", value, choices, required=True)
    if name == "profile":
        choices = (("", "the default of the cluster"), *((each, each) for each in PROFILES))
        return Field(name, "choice", "", value, choices)
    if "enum" in one.get("items", {}):
        some = tuple((str(each), f"{each} only") for each in one["items"]["enum"])
        return Field(name, "choice", about, given.get(name, ""), (("", "all of them"), *some))
    if "enum" in one:
        return Field(name, "choice", about, value, tuple((str(each), str(each)) for each in one["enum"]))
    kinds = {
        "boolean": "check",
        "integer": "number",
        "array": "numbers",
        "object": "lines",
    }
    kind = kinds.get(str(one.get("type")), "text")
    return Field(
        name,
        kind,
        TAKES_AWAY if kind == "lines" and _nullable(one) else about,
        value,
        least=one.get("minimum"),
        most=one.get("maximum"),
        required="default" not in schema,
    )


def _nullable(schema: Mapping[str, Any]) -> bool:
    """May a value of an object be null?"""
    return "anyOf" in schema.get("additionalProperties", {})


def _some(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value that is there, where there may be none."""
    kinds = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return kinds[0] if kinds else schema


def _nodes(name: str, meta: ClusterMeta, shard: ShardMeta | None, *, with_any: bool) -> list[tuple[str, str]]:
    held = set(shard.everybody) if shard is not None else set()
    found = [(str(ABSENT_NODE), "whoever fits best")] if with_any else []
    for node in meta.nodes:
        fits = shard is None or (node.node_id in held) == (name != "to_node")
        if fits:
            looks = "down" if not node.alive else "draining" if node.draining else "up"
            leads = ", leads" if shard is not None and shard.leader == node.node_id else ""
            found.append((str(node.node_id), f"node {node.node_id} ({looks}{leads})"))
    return found


SECRETS: Final = frozenset(one.name for route in ROUTES for one in secrets_of(route))
"""The names of all secrets."""


# -- what was filled in -------------------------------------------------------------------------------------------


def asked_of(route: Route, given: Mapping[str, str], *, dry_run: bool) -> msgspec.Struct:
    """What the form says of where the action is. Raises InvalidRequestError."""
    values: dict[str, Any] = {name: given.get(name, "") for name in route.in_path}
    return converted(values | {"dry_run": dry_run}, route.asks)


def body_of(route: Route, given: Mapping[str, str]) -> msgspec.Struct:
    """What the form says of the action itself; what was left empty is as by default. Raises InvalidRequestError."""
    if route.body is None:
        raise InvalidRequestError(f"{route.name} is no action")
    values: dict[str, Any] = {}
    for name, schema in _body_fields(route).items():
        kind, text = str(_some(schema).get("type")), given.get(name, "").strip()
        if kind == "boolean":
            values[name] = text in {"1", "true", "on"}
        elif kind == "object" and (text or "default" not in schema):
            values[name] = _lines(text, nullable=_nullable(schema))
        elif _is_secret(schema):
            values[name] = given.get(name, "")
        elif kind == "array" and (text or "default" not in schema):
            values[name] = [part for part in text.replace(",", " ").split() if part]
        elif text:
            values[name] = text
    return converted(values, route.body)


def _lines(text: str, *, nullable: bool) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > LINES_MAX:
        raise InvalidRequestError(
            f"at most {LINES_MAX} lines can be changed at once, and there are {len(lines)}"
        )
    for line in lines:
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise InvalidRequestError(
                f"{line[:100]!r} is no setting: write name=value, one a line"
                + (", and name= to take one away" if nullable else "")
            )
        if name in found:
            raise InvalidRequestError(f"{name[:100]} is named twice")
        found[name] = value if value or not nullable else None
    return found


def converted(values: Mapping[str, Any], kind: type[StructT]) -> StructT:
    """The values as the API has them. Raises InvalidRequestError."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except UNDECODABLE as error:
        raise InvalidRequestError(f"this does not fit: {error}") from None
