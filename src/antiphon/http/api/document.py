"""The OpenAPI document (3.1), made from the table of routes and the types of their handlers."""

import functools
import json
from typing import Any, Final
from urllib.parse import quote

import msgspec

from antiphon import system
from antiphon.http.api.answers import Problem
from antiphon.http.api.problems import PROBLEM
from antiphon.http.api.routes import ROUTES, Route

REF: Final = "#/components/schemas/{name}"
ABOUT: Final = (
    "What the dashboard shows of an Antiphon cluster, and what operators decide. Any node answers: it asks the leaders and "
    "the other nodes. Refusals and failures are problem details (RFC 9457)."
)
TAGS: Final = {
    "cluster": "The cluster, its nodes, what they found, what happened",
    "topics": "Topics, shards, records",
    "tables": "Tables, rows, sessions",
    "groups": "Consumer groups, share groups and transactions",
    "spark": "What Spark's jobs and queries have left in the cluster",
    "security": "Users, access control lists, quotas; never a secret",
    "actions": "What operators decide; with `dry_run=true` the plan",
}


@functools.cache
def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, and what those refer to, by name."""
    kinds: list[Any] = []
    for route in ROUTES:
        for kind in (route.asks, route.body, route.answers):
            if kind is not None and kind not in kinds:
                kinds.append(kind)
    kinds.append(Problem)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    return dict(zip(kinds, schemas, strict=True)), components


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type: a reference."""
    found: dict[str, Any] = _schemas()[0][kind]
    return found


def fields_of(kind: Any) -> dict[str, Any]:
    """The schemas of the fields of a struct, by name."""
    name = schema_of(kind)["$ref"].rsplit("/", 1)[1]
    found: dict[str, Any] = _schemas()[1][name].get("properties", {})
    return found


def description_of(kind: Any, field: str) -> str:
    """What is said of a field; empty: nothing."""
    return str(fields_of(kind).get(field, {}).get("description", ""))


def parameters_of(route: Route) -> list[dict[str, Any]]:
    """The parameters of a route, in the form of the document."""
    found = []
    for name, schema in fields_of(route.asks).items():
        schema = dict(schema)
        about = schema.pop("description", "")
        in_path = name in route.in_path
        found.append(
            {
                "name": name,
                "in": "path" if in_path else "query",
                "required": in_path,
                "schema": schema,
                **({"description": about} if about else {}),
            }
        )
    return sorted(found, key=lambda one: one["in"])


def _operation(route: Route) -> dict[str, Any]:
    answer = {
        "description": "the answer",
        "content": {"application/json": {"schema": schema_of(route.answers)}},
    }
    failed = {"description": "why not", "content": {PROBLEM: {"schema": schema_of(Problem)}}}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
        "description": f"Takes {route.takes}.",
        "parameters": parameters_of(route),
        "responses": {"200": answer, "default": failed},
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of(route.body)}},
        }
    return operation


@functools.cache
def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    asked = {schema_of(route.asks)["$ref"].rsplit("/", 1)[1] for route in ROUTES}
    components = {name: one for name, one in _schemas()[1].items() if name not in asked}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Antiphon", "version": system.installed_version(), "description": ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


@functools.cache
def encoded() -> bytes:
    """As it is sent."""
    return msgspec.json.encode(document()) + b"\n"


# -- for the page -------------------------------------------------------------------------------------------------

SAMPLES: Final = {
    "topic": "flights",
    "table": "aircraft",
    "shard": "0",
    "node": "0",
    "group": "billing",
    "user": "ann",
    "subscription": "slow-producers",
}
BODIES: Final[dict[str, Any]] = {
    "create_topic": {"name": "flights", "shards": 4},
    "alter_topic": {"config": {"retention.ms": "604800000"}},
    "move_replica": {"from_node": 0, "to_node": 3},
    "place_replicas": {"nodes": [0, 1, 2]},
    "drain_node": {},
    "set_password": {"password": "..."},
    "alter_acls": {"add": [{"principal": "User:ann", "operation": "read", "name": "flights"}]},
    "alter_quota": {"user": "ann", "limits": {"producer_byte_rate": 1_000_000}},
    "alter_node_settings": {"settings": {"log_level": "debug"}},
    "alter_settings": {"settings": {"cleaner.bytes_per_s": "16777216"}},
    "put_subscription": {"metrics": "org.apache.kafka.producer.", "match": "client_id=orders-.*"},
}


def example_of(route: Route, base: str) -> str:
    """A call of it for a shell. `base`: where the node is."""
    path = route.path
    for name in route.in_path:
        path = path.replace("{" + name + "}", quote(SAMPLES[name]))
    if route.body is None:
        return f"curl '{base}{path}'"
    body = json.dumps(BODIES.get(route.name, {}))
    return f"curl '{base}{path}?dry_run=true' -H 'Content-Type: application/json' -d '{body}'"


def shown_schema(kind: Any) -> list[tuple[str, str, str]]:
    """The fields of an answer or a body for people: name, type, words."""
    return shown_fields(fields_of(kind))


def shown_fields(fields: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The same of properties."""
    return [(name, shown_type(schema), str(schema.get("description", ""))) for name, schema in fields.items()]


def shown_type(schema: dict[str, Any]) -> str:
    """A type for people."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "anyOf" in schema:
        return " or ".join(shown_type(one) for one in schema["anyOf"])
    if "allOf" in schema:
        return " and ".join(shown_type(one) for one in schema["allOf"])
    if "enum" in schema:
        return " or ".join(json.dumps(one) for one in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {shown_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{shown_type(schema['additionalProperties'])} by name"
    bounds = [str(schema[name]) for name in ("minimum", "maximum") if name in schema]
    return f"{kind} {' to '.join(bounds)}" if len(bounds) == 2 else kind
