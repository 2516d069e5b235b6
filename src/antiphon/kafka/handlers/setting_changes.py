"""What a setting is after a change of IncrementalAlterConfigs: set, reset, and items put into or taken out of a list."""

from typing import Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.messages import admin as m

SET: Final = 0
RESET: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


def value_after(change: m.AlterableSetting, before: str, *, is_list: bool | None) -> str | None:
    """The value; None: back to the default. Raises RefusedError for what has no value then.

    `is_list`: None where the setting is not known: whoever checks values says so.
    """
    name, operation = change.name, change.config_operation
    if operation == RESET:
        return None
    if operation not in {SET, APPEND, SUBTRACT}:
        raise RefusedError(code.INVALID_REQUEST, f"{operation} is no operation on {name}")
    if change.value is None:
        raise RefusedError(code.INVALID_CONFIG, f"{name} is set to nothing")
    if operation == SET or is_list is None:
        return change.value
    if not is_list:
        raise RefusedError(code.INVALID_CONFIG, f"{name} is not a list: set it or reset it")
    items, named = _items(before), _items(change.value)
    if operation == APPEND:
        return ",".join(dict.fromkeys([*items, *named]))
    return ",".join(item for item in items if item not in named)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]
