"""DescribeClientQuotas and AlterClientQuotas (KIP-546), by way of the coordinator."""

from typing import Final

import msgspec

from antiphon.errors import InvalidRequestError
from antiphon.gateway import changes
from antiphon.gateway.interface import Gateway
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.refusals import config_errors, told
from antiphon.kafka.handlers.rights import check
from antiphon.kafka.messages import quotas as m
from antiphon.model.access import Operation, Resource
from antiphon.model.quotas import DEFAULT, LIMITS, Quota, address, check_quota
from antiphon.model.requests import AlterQuota

TYPES: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}
EXACT, EVERYONE, ANY_NAME = 0, 1, 2


class QuotaHandler:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def describe(
        self, request: m.DescribeClientQuotasRequest, context: RequestContext
    ) -> m.DescribeClientQuotasResponse:
        """The quotas that a filter matches."""
        check(context.rights, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
        with config_errors(has_config=False):
            wanted = _filters(request)
        known = sorted(self._gateway.access.quotas.values(), key=lambda quota: quota.key)
        return m.DescribeClientQuotasResponse(
            entries=[
                m.QuotaEntry(
                    entity=_parts(quota),
                    values=[m.QuotaValue(key=name, value=limit) for name, limit in quota.limits.items()],
                )
                for quota in known
                if _matches(quota, wanted, strict=request.strict)
            ]
        )

    async def alter(
        self, request: m.AlterClientQuotasRequest, context: RequestContext
    ) -> m.AlterClientQuotasResponse:
        """Set limits and take them away, entity by entity."""
        check(context.rights, Operation.ALTER_CONFIGS, Resource.CLUSTER)
        results = []
        async for entry in context.turn_budget.each(request.entries):
            work = self._alter(entry, context, validate_only=request.validate_only)
            results.append(await told(m.AlteredResult(entity=entry.entity), work))
        return m.AlterClientQuotasResponse(entries=results)

    async def _alter(self, entry: m.AlteredEntry, context: RequestContext, *, validate_only: bool) -> None:
        keys = [op.key for op in entry.ops]
        unknown = sorted(set(keys) - set(LIMITS))
        if unknown:
            raise InvalidRequestError(f"{unknown[0][:40]!r} is no limit; there are {', '.join(LIMITS)}")
        if len(set(keys)) != len(keys):
            raise InvalidRequestError("a limit is named more than once for one entity")
        limits = {op.key: op.value for op in entry.ops if not op.remove}
        gone = tuple(op.key for op in entry.ops if op.remove)
        quota = msgspec.structs.replace(_entity(entry.entity), **limits)
        check_quota(quota, gone)
        if not validate_only:
            wanted = AlterQuota(quota, gone)
            await changes.administer(self._gateway, wanted, context.rights, context.client_host, "kafka")


def _kind(entity_type: str) -> str:
    if entity_type not in TYPES:
        raise InvalidRequestError(f"{entity_type[:40]!r} is no type of name; there are {', '.join(TYPES)}")
    return TYPES[entity_type]


def _entity(parts: list[m.EntityPart]) -> Quota:
    """The entity that these parts make up, without limits. Raises InvalidRequestError."""
    names: dict[str, str] = {}
    for part in parts:
        kind = _kind(part.entity_type)
        if kind in names:
            raise InvalidRequestError(f"the entity has two names of type {part.entity_type}")
        if part.entity_name == DEFAULT:
            raise InvalidRequestError(f"an empty name of type {part.entity_type}; null stands for everyone")
        names[kind] = DEFAULT if part.entity_name is None else part.entity_name
    if names.get("ip"):
        names["ip"] = address(names["ip"]) or names["ip"]
    return Quota(names.get("user"), names.get("client_id"), names.get("ip"))


def _parts(quota: Quota) -> list[m.EntityPart]:
    return [
        m.EntityPart(entity_type=kind, entity_name=getattr(quota, name) or None)
        for kind, name in TYPES.items()
        if getattr(quota, name) is not None
    ]


def _filters(request: m.DescribeClientQuotasRequest) -> dict[str, m.QuotaFilter]:
    wanted: dict[str, m.QuotaFilter] = {}
    for component in request.components:
        kind = _kind(component.entity_type)
        if kind in wanted:
            raise InvalidRequestError(f"type {component.entity_type} is filtered by twice")
        if component.match_type not in {EXACT, EVERYONE, ANY_NAME}:
            raise InvalidRequestError(f"match type {component.match_type} means nothing")
        if (component.match is not None) != (component.match_type == EXACT):
            raise InvalidRequestError("a name goes with match type 0, and with no other")
        if kind == "ip" and component.match:
            component.match = address(component.match) or component.match
        wanted[kind] = component
    if "ip" in wanted and len(wanted) > 1:
        raise InvalidRequestError("no entity has an address and another name")
    return wanted


def _matches(quota: Quota, wanted: dict[str, m.QuotaFilter], *, strict: bool) -> bool:
    for name in TYPES.values():
        found, component = getattr(quota, name), wanted.get(name)
        if component is None:
            if strict and found is not None:
                return False
        elif found is None or not _is(found, component):
            return False
    return True


def _is(name: str, component: m.QuotaFilter) -> bool:
    match component.match_type:
        case 0:
            return name != DEFAULT and name == component.match
        case 1:
            return name == DEFAULT
    return True
