"""The level of a node's log as Kafka's tools see it: a resource of type BROKER_LOGGER with one logger, `root`.

It is the setting `log_level` of the node, so it is kept in the cluster and survives a restart.
"""

from collections.abc import Sequence
from typing import Final

from antiphon.coordination.topic_settings import STRING
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.handlers.refusals import RefusedError, config_errors
from antiphon.kafka.handlers.setting_changes import RESET, SET
from antiphon.kafka.messages import admin as m
from antiphon.model.node_settings import AlterNodeSettings

ROOT: Final = "root"
SETTING: Final = "log_level"
SOURCE_LOGGER: Final = 6
LEVELS: Final = {"DEBUG": "debug", "INFO": "info", "WARN": "warning", "ERROR": "error"}
"""Kafka's names of the levels that there are here."""

_KAFKA_NAME: Final = {own: name for name, own in LEVELS.items()}


class BrokerLoggers:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def described(self, broker: str) -> list[m.DescribedSetting]:
        """The logger of this node. Raises RefusedError for another broker, as Kafka does."""
        self._check(broker)
        value = _KAFKA_NAME[self._gateway.settings.values(SETTING)[0].value]
        return [m.DescribedSetting(name=ROOT, value=value, config_source=SOURCE_LOGGER, config_type=STRING)]

    async def alter(self, broker: str, changes: Sequence[m.AlterableSetting], *, validate_only: bool) -> None:
        """Set its level. Raises RefusedError, and what is to be tried again."""
        self._check(broker)
        if len(changes) > 1:
            raise RefusedError(code.INVALID_REQUEST, f"{ROOT} is changed twice by one request")
        for change in changes:
            level = _level_of(change)
            with config_errors(True):
                wanted: dict[str, str | None] = {SETTING: level}
                await self._gateway.administer(
                    AlterNodeSettings(self._gateway.node_id, wanted, validate_only)
                )

    def _check(self, broker: str) -> None:
        if broker != str(self._gateway.node_id):
            raise RefusedError(
                code.INVALID_REQUEST,
                f"loggers of broker {broker[:64]!r} were asked for, and this is broker {self._gateway.node_id}: ask it",
            )


def _level_of(change: m.AlterableSetting) -> str:
    if change.name != ROOT:
        raise RefusedError(
            code.INVALID_CONFIG, f"there is no logger {change.name[:100]!r}: a node has {ROOT!r} only"
        )
    if change.config_operation == RESET:
        raise RefusedError(code.INVALID_REQUEST, f"{ROOT} always has a level: set another one")
    if change.config_operation != SET:
        raise RefusedError(code.INVALID_REQUEST, f"{change.config_operation} is no operation on a logger")
    level = LEVELS.get((change.value or "").strip().upper())
    if level is None:
        raise RefusedError(
            code.INVALID_CONFIG, f"{(change.value or '')[:64]!r} is no level: there are {', '.join(LEVELS)}"
        )
    return level
