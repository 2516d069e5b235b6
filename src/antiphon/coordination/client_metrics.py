"""Subscriptions to metrics of Kafka clients in the metadata: what they may say, and what follows for one client.

Expressions are RE2's: the time that a match takes rises with the length of the text and no faster, whatever the expression.
How long an expression, a text and a subscription may be, and how many there may be, is bounded here.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from antiphon.coordination.cluster_records import SUBSCRIPTIONS_FORMAT
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.patterns import BadRegexError, compiled
from antiphon.coordination.state import refuse_earlier
from antiphon.errors import InvalidRequestError
from antiphon.model.client_metrics import (
    CLIENT_ATTRIBUTES,
    DEFAULTS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    SUBSCRIPTIONS_MAX,
    AlterSubscription,
    Subscription,
    changed,
)

ALL_METRICS: Final = "*"
NAME_BYTES_MAX: Final = 255
VALUE_BYTES_MAX: Final = 4_096
INTERVALS_MS: Final = (100, 3_600_000)
REGEX_MEMORY_BYTES: Final = 128 * 1024  # that an expression may take; there are 600 at most
TEXT_CHARACTERS_MAX: Final = 256  # that are matched; a longer text matches nothing
SHOWN_CHARACTERS: Final = 100


class BadValueError(InvalidRequestError):
    """A value that the setting cannot have."""


class Wanted(NamedTuple):
    """What a subscription says, read: prefixes of metrics' names, milliseconds between two pushes, expressions by what they
    look at.
    """

    metrics: frozenset[str]
    interval_ms: int
    match: dict[str, Any]

    def is_for(self, client: Mapping[str, str]) -> bool:
        """Is this client meant? Every expression has to match the whole of what it looks at."""
        for attribute, expression in self.match.items():
            text = client.get(attribute, "")
            if len(text) > TEXT_CHARACTERS_MAX or not expression.fullmatch(text):
                return False
        return True


def alter(ledger: Ledger, request: AlterSubscription) -> None:
    """Record what the request changes; raises InvalidRequestError, with nothing recorded."""
    model, name = ledger.model, request.name
    check_name(name)
    check_values(request.config)
    refuse_earlier(
        model,
        SUBSCRIPTIONS_FORMAT,
        "are of a version that takes no metrics of clients: upgrade them first (`antiphon upgrade --check`)",
    )
    known = model.subscriptions
    before = known.get(name, Subscription(name, {}))
    after = changed(before, request.config)
    if after.values and name not in known and len(known) >= SUBSCRIPTIONS_MAX:
        raise InvalidRequestError(f"there are {SUBSCRIPTIONS_MAX} subscriptions to clients' metrics already")
    if after != before and not request.validate_only:
        ledger.put_subscription(after)


def check_name(name: str) -> None:
    """Raise InvalidRequestError for what is no name of a subscription."""
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
        raise InvalidRequestError(
            f"the name of a subscription has 1 to {NAME_BYTES_MAX} bytes of printable characters"
        )


def check_values(values: Mapping[str, str | None]) -> None:
    """Raise InvalidRequestError for a setting that there is not, BadValueError for a value that cannot be."""
    for name, value in values.items():
        if name not in DEFAULTS:
            raise InvalidRequestError(
                f"{name[:SHOWN_CHARACTERS]!r} is no setting of a subscription; there are {', '.join(sorted(DEFAULTS))}"
            )
        if value is None:
            continue
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise BadValueError(f"{name} has {VALUE_BYTES_MAX:,} bytes at most")
        if name == INTERVAL_MS:
            _interval_ms(value)
        elif name == METRICS:
            _prefixes(value)
        else:
            _expressions(value)


def read(subscription: Subscription) -> Wanted:
    """What a subscription says. Raises InvalidRequestError for what this version cannot read."""
    values = {**DEFAULTS, **subscription.values}
    return Wanted(_prefixes(values[METRICS]), _interval_ms(values[INTERVAL_MS]), _expressions(values[MATCH]))


def items_of(value: str) -> list[str]:
    """The items of a list, as Kafka writes it; an empty text is an empty list."""
    return [item.strip() for item in value.split(",")] if value.strip() else []


def _interval_ms(value: str) -> int:
    least, most = INTERVALS_MS
    text = value.strip()
    told = f"{INTERVAL_MS} is a whole number from {least} to {most}, not {text[:SHOWN_CHARACTERS]!r}"
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise BadValueError(told)
    if len(text) > len(str(most)) or not least <= int(text) <= most:
        raise InvalidRequestError(told)  # as Kafka tells the one from the other
    return int(text)


def _prefixes(value: str) -> frozenset[str]:
    found = items_of(value)
    if "" in found or len(set(found)) < len(found):
        raise BadValueError(
            f"{METRICS} is a list of prefixes of metrics' names, each once, or {ALL_METRICS} for all of them"
        )
    return frozenset(found)


def _expressions(value: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items_of(value):
        attribute, equals, regex = item.partition("=")
        attribute = attribute.strip()
        if not equals or attribute not in CLIENT_ATTRIBUTES:
            raise BadValueError(
                f"{item[:SHOWN_CHARACTERS]!r} in {MATCH} is no ATTRIBUTE=REGEX with one of {', '.join(CLIENT_ATTRIBUTES)}"
            )
        if attribute in found:
            raise BadValueError(f"{MATCH} names {attribute} twice")
        found[attribute] = _compiled(regex.strip())
    return found


def _compiled(regex: str) -> Any:
    try:
        return compiled(regex, REGEX_MEMORY_BYTES)
    except BadRegexError as error:
        raise BadValueError(str(error)) from error
