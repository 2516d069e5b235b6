"""Subscriptions to clients' metrics as Kafka's tools see them: resources of type CLIENT_METRICS with three settings."""

from collections.abc import Sequence
from typing import Final

from antiphon.coordination.client_metrics import BadValueError, check_name, check_values
from antiphon.coordination.topic_settings import INT, LIST
from antiphon.errors import InvalidRequestError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.setting_changes import value_after
from antiphon.kafka.messages import admin as m
from antiphon.kafka.topic_config import SOURCE_DEFAULT
from antiphon.model.client_metrics import DEFAULTS, INTERVAL_MS, MATCH, METRICS, AlterSubscription

SOURCE_SUBSCRIPTION: Final = 7
DOCUMENTED: Final = {
    METRICS: "Prefixes of the names of metrics that are wanted; *: all of them. Empty: none.",
    INTERVAL_MS: "How often clients push them, in milliseconds, from 100 to 3600000.",
    MATCH: "ATTRIBUTE=REGEX, with commas between: which clients are meant. Empty: all of them.",
}


class SubscriptionSettings:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def names(self) -> list[str]:
        """Those that there are."""
        return sorted(self._gateway.subscriptions)

    def set_for(self, name: str) -> list[str]:
        """Names of the settings that a subscription has."""
        return list(self._values(name))

    def _values(self, name: str) -> dict[str, str]:
        found = self._gateway.subscriptions.get(name)
        return {} if found is None else found.values

    def described(self, name: str, request: m.DescribeConfigsRequest) -> list[m.DescribedSetting]:
        """What a subscription says, be there one of this name or not. Raises RefusedError."""
        if not name:
            raise RefusedError(code.INVALID_REQUEST, "a subscription to clients' metrics has a name")
        own, found = self._values(name), []
        for setting, default in DEFAULTS.items():
            values = [(own[setting], SOURCE_SUBSCRIPTION)] if setting in own else []
            values.append((default, SOURCE_DEFAULT))
            synonyms = [
                m.SettingSynonym(name=setting, value=value, source=source) for value, source in values
            ]
            found.append(
                m.DescribedSetting(
                    name=setting,
                    value=values[0][0],
                    config_source=values[0][1],
                    synonyms=synonyms if request.include_synonyms else [],
                    config_type=INT if setting == INTERVAL_MS else LIST,
                    documentation=DOCUMENTED[setting] if request.include_documentation else None,
                )
            )
        return found

    async def alter(self, name: str, changes: Sequence[m.AlterableSetting], *, validate_only: bool) -> None:
        """Change what a subscription says. Raises RefusedError, and what is to be tried again."""
        own, wanted = self._values(name), dict[str, str | None]()
        for one in changes:
            if one.name in wanted:
                raise RefusedError(code.INVALID_REQUEST, f"{one.name} is changed twice by one request")
            wanted[one.name] = value_after(
                one, own.get(one.name, ""), is_list=one.name != INTERVAL_MS if one.name in DEFAULTS else None
            )
        try:
            check_name(name)
            check_values(wanted)
        except BadValueError as error:
            raise RefusedError(code.INVALID_CONFIG, error.message) from error
        except InvalidRequestError as error:
            raise RefusedError(code.INVALID_REQUEST, error.message) from error
        if wanted:
            await self._gateway.administer(AlterSubscription(name, wanted, validate_only))
