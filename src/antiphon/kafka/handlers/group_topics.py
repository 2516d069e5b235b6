"""The topics that groups of the consumer protocol may read, and those that a regular expression names.

Expressions are RE2's, as Kafka's are: the time that a match takes rises with the length of a name and no faster, whatever
the expression. What it matches is looked up once for each version of the metadata.
"""

from collections import OrderedDict
from typing import Final

import re2

from antiphon.coordination.consumer_terms import Catalog, TopicFacts
from antiphon.gateway.interface import Gateway
from antiphon.kafka.handlers.rights import sees
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind
from antiphon.security.authorizer import Rights

REGEX_BYTES_MAX: Final = 1_024
REGEX_MEMORY_BYTES: Final = 1 << 20  # that an expression may take
KEPT_REGEXES: Final = 256


class BadRegexError(ValueError):
    """An expression that RE2 does not take, or that is too long."""


class GroupTopics:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._catalog = Catalog(-2, {})
        self._matches: OrderedDict[str, tuple[int, tuple[str, ...]]] = (
            OrderedDict()
        )  # by expression: version, names
        self._options = re2.Options()
        self._options.max_mem = REGEX_MEMORY_BYTES
        self._options.log_errors = False

    def catalog(self) -> Catalog:
        """Topics as of the metadata of now: no tables, nothing of the cluster's own."""
        meta = self._gateway.metadata
        if self._catalog.version != meta.version:
            self._catalog = Catalog(
                meta.version,
                {
                    topic.name: TopicFacts(topic.topic_id, len(topic.shards))
                    for topic in meta.topics
                    if topic.kind is Kind.TOPIC and not is_internal(topic)
                },
            )
        return self._catalog

    def matching(self, regex: str, rights: Rights) -> tuple[str, ...]:
        """Names that the whole of `regex` matches, of topics that the client may know of. Raises BadRegexError."""
        catalog = self.catalog()
        version, names = self._matches.get(regex, (-2, ()))
        if version != catalog.version:
            names = self._look_up(regex, catalog)
            self._matches[regex] = catalog.version, names
            if len(self._matches) > KEPT_REGEXES:
                self._matches.popitem(last=False)
        return tuple(name for name in names if sees(self._gateway, rights, name))

    def _look_up(self, regex: str, catalog: Catalog) -> tuple[str, ...]:
        if len(regex.encode()) > REGEX_BYTES_MAX:
            raise BadRegexError(f"a regular expression has {REGEX_BYTES_MAX} bytes at most")
        try:
            compiled = re2.compile(regex, self._options)
        except re2.error as error:
            reason = error.args[0] if error.args else "unknown"
            told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise BadRegexError(f"{regex!r} is not a regular expression of RE2: {told}") from error
        return tuple(sorted(name for name in catalog.topics if compiled.fullmatch(name)))
