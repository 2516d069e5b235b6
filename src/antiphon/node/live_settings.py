"""The settings of this node that are changed while it runs, made from its file and from what the metadata says.

The values that count stand in the node's own copy of its configuration. Whoever reads them there at each use need not be
told of a change; whoever keeps a value follows (`follow`).
"""

import copy
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from antiphon.model.node_settings import (
    NODE_SETTINGS,
    NodeSettings,
    Source,
    Told,
    find_setting,
    own_name,
    text_of,
    unreadable,
    values_of,
)
from antiphon.node.config import NodeConfig

_DEFAULTS: Final = NodeConfig(cluster_id="", node_id=-1, nodes=[])


class LiveSettings:
    """See the module's text; of one node, on its event loop.

    Attributes:
        config: what the node goes by. Others than this object change nothing in it.
        entries: what the metadata says, as it was last taken over.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.config = copy.deepcopy(config)  # the file's stays as it is, for the next start in this process
        self.entries: Mapping[int, NodeSettings] = {}
        self._in_file = {name: text_of(_get(config, name)) for name in NODE_SETTINGS}
        self._followers: list[Callable[[], None]] = []
        self._log = structlog.get_logger()

    def follow(self, changed: Callable[[], None]) -> None:
        """Have this called after each change, once for all that changed together."""
        self._followers.append(changed)

    def values(self, name: str) -> list[Told]:
        """Every value that there is of a setting, the one that counts first. Raises InvalidRequestError."""
        setting = find_setting(name)
        return values_of(setting, self.entries, self.config.node_id, self._in_file[setting.name])

    def for_topics(self, name: str, *, of_table: bool = False) -> list[Told]:
        """See NodeValues."""
        own = own_name(name, of_table=of_table)
        if own is None or own in NODE_SETTINGS:
            return [] if own is None else self.values(own)
        value = text_of(_get(self.config, own))
        default = Told(text_of(_get(_DEFAULTS, own)), Source.DEFAULT)
        return [default] if value == default.value else [Told(value, Source.FILE), default]

    def take(self, entries: Mapping[int, NodeSettings]) -> None:
        """The metadata says this now. In effect when it returns."""
        if entries == self.entries:
            return
        self.entries = dict(entries)
        lacking = unreadable(entries.values())
        if lacking:
            self._log.warning("settings_not_known", settings=lacking)
        changed = False
        for name, setting in NODE_SETTINGS.items():
            told = self.values(name)[0]
            value = setting.read(told.value)
            if value != _get(self.config, name):
                changed = True
                _set(self.config, name, value)
                self._log.info("setting_changed", setting=name, value=value, source=str(told.source))
        if changed:
            for follower in self._followers:
                follower()


def _get(config: NodeConfig, name: str) -> bool | int | str:
    section, _, own = name.rpartition(".")
    found: bool | int | str = getattr(getattr(config, section) if section else config, own)
    return found


def _set(config: NodeConfig, name: str, value: bool | int | str) -> None:
    section, _, own = name.rpartition(".")
    setattr(getattr(config, section) if section else config, own, value)
