"""Quotas of clients."""

from antiphon.kafka.messages.shared import Outcome, ReasonResponse, Response
from antiphon.kafka.schema import F64, I8, Message


class QuotaFilter(Message, kw_only=True):
    """Which entities: by one type of theirs. `match_type` 0: this name, 1: everyone, 2: any name."""

    entity_type: str
    match_type: I8
    match: str | None


class DescribeClientQuotasRequest(Message, kw_only=True):
    """What all of the components match; `strict`: and has no other type of name."""

    components: list[QuotaFilter]
    strict: bool


class EntityPart(Message, kw_only=True):
    """A type of name and the name; None: everyone."""

    entity_type: str
    entity_name: str | None


class QuotaValue(Message, kw_only=True):
    """One limit."""

    key: str
    value: F64


class QuotaEntry(Message, kw_only=True):
    """The limits of one entity."""

    entity: list[EntityPart]
    values: list[QuotaValue]


class DescribeClientQuotasResponse(ReasonResponse, kw_only=True):
    """What was found; None with an error."""

    entries: list[QuotaEntry] | None = None


class QuotaOp(Message, kw_only=True):
    """Set one limit, or take it away."""

    key: str
    value: F64
    remove: bool


class AlteredEntry(Message, kw_only=True):
    """Changes of one entity."""

    entity: list[EntityPart]
    ops: list[QuotaOp]


class AlterClientQuotasRequest(Message, kw_only=True):
    """Changes of several entities, each by itself."""

    entries: list[AlteredEntry]
    validate_only: bool


class AlteredResult(Outcome, kw_only=True):
    """The outcome for one entity."""

    entity: list[EntityPart]


class AlterClientQuotasResponse(Response, kw_only=True):
    """The outcomes, in the order of the entries."""

    entries: list[AlteredResult]
