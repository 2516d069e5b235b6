"""The metadata as it is sent to native clients: encoded once for each version and each who may see the same of it. The same
for users, access control lists and quotas, of which all see everything who may ask.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.gateway.access import shown
from antiphon.model.requests import AccessReply, MetadataReply

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway
    from antiphon.model.access import AccessBook
    from antiphon.model.metadata import ClusterMeta
    from antiphon.security.authorizer import Rights
    from antiphon.security.principal import Principal

KEPT_BYTES_MAX: Final = 16 * 1024 * 1024  # of answers for clients that do not see everything

_Who = tuple["Principal", str] | None
_encode: Final = msgspec.msgpack.Encoder().encode


class MetadataAnswers:
    """See the module's text. One for all connections of a listener."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._of: tuple[ClusterMeta | None, int] = None, -1
        self._encoded: dict[_Who, msgspec.Raw] = {}
        self._bytes = 0
        self._access: tuple[int, msgspec.Raw] = -1, msgspec.Raw()  # the version of the book, and the answer
        self.encodings = 0  # since the start

    def now(self, rights: "Rights") -> msgspec.Raw:
        """The answer as of now."""
        gateway = self._gateway
        meta, version = gateway.metadata, gateway.access.version
        if self._of[0] is not meta or self._of[1] != version or self._bytes > KEPT_BYTES_MAX:
            self._of, self._bytes = (meta, version), 0
            self._encoded.clear()
        who = (rights.principal, rights.host) if rights.limited else None
        found = self._encoded.get(who)
        if found is None:
            self.encodings += 1
            found = self._encoded[who] = msgspec.Raw(_encode(MetadataReply(shown(meta, rights))))
            self._bytes += len(bytes(found)) if who is not None else 0
        return found

    def access(self) -> msgspec.Raw:
        """Users, access control lists and quotas as of now."""
        book = self._gateway.access
        if self._access[0] != book.version:
            self.encodings += 1
            self._access = book.version, msgspec.Raw(_encode(_access_reply(book)))
        return self._access[1]


def _access_reply(book: "AccessBook") -> AccessReply:
    """Without the keys of credentials."""
    users = tuple(
        (name, tuple(one.mechanism for one in user.credentials)) for name, user in sorted(book.users.items())
    )
    quotas = tuple(book.quotas[name] for name in sorted(book.quotas))
    return AccessReply(users, tuple(sorted(book.acls.values())), quotas)
