"""The topics that groups of the consumer protocol may read, and those that a regular expression names.

What an expression matches (`patterns`) is looked up once for each version of the metadata, whoever asks, in several turns of
the event loop: there may be many topics.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from antiphon.coordination.consumer_terms import Catalog
from antiphon.coordination.patterns import compiled
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.catalogs import Catalogs
from antiphon.kafka.handlers.rights import sees
from antiphon.kafka.matching import matching
from antiphon.security.authorizer import Rights

KEPT_REGEXES: Final = 256
_Matched = tuple[int, tuple[str, ...]]  # version of the metadata, names


class GroupTopics:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._catalogs = Catalogs(gateway)
        self._matches: OrderedDict[str, _Matched] = OrderedDict()  # by expression
        self._looking: dict[
            str, asyncio.Future[tuple[str, ...] | None]
        ] = {}  # expressions that are looked up now

    def catalog(self) -> Catalog:
        """Topics as of the metadata of now."""
        return self._catalogs.now()

    async def matching(
        self, regex: str, rights: Rights, turn: Callable[[], Awaitable[None]]
    ) -> tuple[str, ...]:
        """Names that the whole of `regex` matches, of topics that the client may know of. Raises BadRegexError.

        `turn` returns when it is the turn of the client's connection.
        """
        names = self._known(regex)
        while names is None:
            looking = self._looking.get(regex)
            if looking is None:
                names = await self._look_up(regex, turn)
            else:
                names = await asyncio.shield(looking)  # None: whoever looked has given up
        return tuple(name for name in names if sees(self._gateway, rights, name))

    def _known(self, regex: str) -> tuple[str, ...] | None:
        version, names = self._matches.get(regex, (-2, ()))
        return names if version == self.catalog().version else None

    async def _look_up(self, regex: str, turn: Callable[[], Awaitable[None]]) -> tuple[str, ...]:
        pattern, catalog, names = compiled(regex), self.catalog(), None
        looking = self._looking[regex] = asyncio.get_running_loop().create_future()
        try:
            names = tuple(sorted(await matching(pattern, catalog.topics, turn)))
        finally:
            del self._looking[regex]
            looking.set_result(names)
        self._matches[regex] = catalog.version, names
        if len(self._matches) > KEPT_REGEXES:
            self._matches.popitem(last=False)
        return names
