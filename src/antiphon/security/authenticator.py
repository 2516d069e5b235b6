"""Who somebody is: logins by SASL (RFC 4422), the same for every listener.

A login is a few messages of the client, each answered by a challenge, until there is an identity. Whatever is wrong,
an unknown user or a wrong password, fails at the same message with the same error.
"""

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from antiphon import system
from antiphon.errors import AntiphonError, NotReadyError, UnauthenticatedError
from antiphon.model.access import AccessBook, Credential
from antiphon.security import passwords
from antiphon.security.account import NOBODY, Account
from antiphon.security.authorizer import Authorizer, Rights
from antiphon.security.bounded_lines import BoundedLines, shown
from antiphon.security.principal import ANONYMOUS, NODE, Principal
from antiphon.security.settings import OAuth, Security

if TYPE_CHECKING:
    from antiphon.security.tokens import KeySource, TokenCheck

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
REVEALING: Final = (PLAIN, OAUTHBEARER)  # send what others could use: over TLS or within this machine only
MESSAGE_BYTES_MAX: Final = 32 * 1024
FAILED_DELAY_S: Final = 1.0  # before a failed login is answered
LOOK_S: Final = 1.0  # how often listeners look whether identities still hold
FAILED: Final = "authentication failed"
MECHANISM_MAX: Final = 40  # characters of one that is not served
NODE_USER: Final = "__node"  # what the nodes log in as where they are clients of the cluster


class Identity(NamedTuple):
    """Who has logged in. It holds until `expires_s` (since 1970), and while `proof` is a credential of the user."""

    principal: Principal
    mechanism: str = ""
    proof: Credential | None = None
    expires_s: float | None = None


class LoginCount(Protocol):
    """Where failed logins are counted."""

    denied: int
    logins_failed: int


class Aside(Protocol):
    """Where passwords are checked beside the event loop, those of an address in turn with others'."""

    async def run(self, address: str, work: Callable[..., bool], *args: object) -> bool:
        """What `work` returns; raises OverloadedError where too many wait."""


class Login(Protocol):
    """One login under way. `identity` is set when it has succeeded, `claimed` when the client has said who it is."""

    identity: Identity | None
    claimed: str

    def hard_part(self, data: bytes) -> "HardPart | None":
        """What takes milliseconds of the `step` with this message: it is then to be done before; None: nothing does."""

    def step(self, data: bytes) -> bytes:
        """The answer to a message of the client; raises UnauthenticatedError, after which the login is over."""


class HardPart:
    """A password that is to be checked, against what is kept of it. `proves`: does it prove that? None: not known yet."""

    def __init__(self, found: Credential, password: str, *, known: bool) -> None:
        self.found = found
        self.password = password
        self.known = known
        self.proves: bool | None = None


class Authenticator:
    """Logins to one node.

    Args:
        settings: what the operator decided.
        book: the users and access control lists that the node knows.
        counters: where failed logins are counted.
        secret: unknown users look the same to whoever does not know it.
        token_keys: where the keys are that tokens are checked with; by default the file of the settings.

    Attributes:
        aside: where passwords are checked; None: where they are asked for, which takes milliseconds.
    """

    def __init__(
        self,
        settings: Security,
        book: AccessBook,
        counters: LoginCount,
        secret: bytes,
        token_keys: "KeySource | None" = None,
    ) -> None:
        self.on = settings.authentication
        self.aside: Aside | None = None
        self.authorizer = Authorizer(book, settings.super_users, counters, on=self.on)
        self._settings = settings
        self._book = book
        self._counters = counters
        self._secret = secret
        self._tokens = _token_check(settings.oauth, token_keys)
        self._failures = BoundedLines("login_failed", "address", "logins", "failed")
        self._own = (
            passwords.credential(passwords.SHA_256, self._own_password(), secret[:16]) if self.on else None
        )

    def _own_password(self) -> str:
        return hmac.digest(self._secret, b"nodes as clients", "sha256").hex()

    @property
    def own_account(self) -> Account:
        """With this the nodes' own threads log in, as what may do everything: at every node that knows the secret."""
        return Account(NODE_USER, self._own_password()) if self.on else NOBODY

    def rights(self, identity: Identity | None, host: str) -> Rights:
        """What an identity may do; None: everybody who may connect without one."""
        return Rights(self.authorizer, identity.principal if identity else ANONYMOUS, host)

    def mechanisms(self, *, private: bool) -> tuple[str, ...]:
        """What clients may log in with; `private`: nobody else reads what they send."""
        found = tuple(self._settings.sasl_mechanisms)
        if self._tokens is None:
            found = tuple(name for name in found if name != OAUTHBEARER)
        return tuple(name for name in found if private or name not in REVEALING)

    def begin(self, mechanism: str, *, private: bool) -> Login:
        """Begin a login; raises UnauthenticatedError for a mechanism that is not served."""
        if mechanism not in self.mechanisms(private=private):
            raise UnauthenticatedError(f"mechanism {mechanism[:MECHANISM_MAX]!r} is not served here")
        if mechanism == PLAIN:
            return _Plain(self)
        if mechanism == OAUTHBEARER:
            return _Bearer(self)
        return _Scram(self, mechanism)

    def holds(self, identity: Identity) -> bool:
        """Is it still who they are: the user is there with this credential, the token has not expired?"""
        if identity.expires_s is not None and system.wall_s() >= identity.expires_s:
            return False
        proof = identity.proof
        if proof is None or identity.principal == NODE:
            return True
        user = self._book.users.get(identity.principal.name)
        return user is not None and user.credential(proof.mechanism) == proof

    @property
    def knows_users(self) -> bool:
        """Has this node heard of the users since it was started?"""
        return self._book.is_known

    def failed(self) -> AntiphonError:
        """What the client of a failed login is told: an UnauthenticatedError.

        A node that was just started, and knows no users yet, refuses nobody for good: a NotReadyError, whoever it is.
        """
        if not self.knows_users:
            return NotReadyError("this node was just started and knows no users yet; ask another, or again")
        return UnauthenticatedError(FAILED)

    def log_failed(self, listener: str, address: str, mechanism: str, claimed: str) -> None:
        """Count a failed login, and tell the log of it: at a bounded rate for each address, so that none hides another.

        `claimed` is the name that the client gave, empty where it gave none. What proves a name is never told.
        """
        self._counters.logins_failed += 1
        facts = {"listener": listener, "user": shown(claimed), "mechanism": shown(mechanism, MECHANISM_MAX)}
        self._failures.log(address, self._counters.logins_failed, **facts)

    def log_left_out(self) -> None:
        """Tell the log how many failed logins and denied requests had no line."""
        self._failures.log_left_out()
        self.authorizer.log_left_out()

    # -- what logins ask ------------------------------------------------------------------------------------------

    def credential(self, mechanism: str, name: str) -> tuple[Credential, bool]:
        """The credential of a user, or one that nothing proves; and whether it is a user's."""
        if name == NODE_USER and self._own is not None and mechanism == self._own.mechanism:
            return self._own, True
        user = self._book.users.get(name)
        found = None if user is None else user.credential(mechanism)
        if found is not None:
            return found, True
        return passwords.of_nobody(self._book, mechanism, name, self._secret), False

    def to_prove(self, name: str, password: str) -> HardPart:
        """What the password of a name has to prove. Of an unknown name that is something that no password does."""
        found, known = self.credential(passwords.SHA_256, name)
        if not known:
            other, known = self.credential(passwords.SHA_512, name)
            found = other if known else found
        return HardPart(found, password, known=known)

    def check_password(self, name: str, password: str, part: HardPart | None = None) -> Identity:
        """Who has this name and password; raises UnauthenticatedError.

        Takes milliseconds, unless `part` has the result. It counts for what was kept of the user then: one who has got
        another password since, or is gone, is refused.
        """
        if name == NODE_USER:
            raise self.failed()  # its password is never sent
        if part is None or part.proves is None:
            part = self.to_prove(name, password)
            part.proves = passwords.proves(part.found, password)
        identity = Identity(Principal("User", name), PLAIN, part.found)
        if not part.proves or not part.known or not self.holds(identity):
            raise self.failed()
        return identity

    def claimed_by(self, token: str) -> str:
        """Whom a token says to be about, which nobody has checked; empty where it says nothing."""
        return "" if self._tokens is None else self._tokens.claimed(token)

    def check_token(self, token: str) -> Identity:
        """Whom a bearer token names; raises UnauthenticatedError."""
        if self._tokens is None:
            raise self.failed()
        try:
            bearer = self._tokens.check(token)
        except UnauthenticatedError:
            raise self.failed() from None
        return Identity(Principal("User", bearer.name), OAUTHBEARER, None, bearer.expires_s)


def _token_check(settings: OAuth, keys: "KeySource | None") -> "TokenCheck | None":
    if not settings.keys:
        return None
    from antiphon.security.tokens import TokenCheck  # its library takes a while to import

    return TokenCheck(settings, keys)


class _Plain:
    """RFC 4616."""

    def __init__(self, owner: Authenticator) -> None:
        self.identity: Identity | None = None
        self.claimed = ""
        self._owner = owner
        self._part: HardPart | None = None

    def hard_part(self, data: bytes) -> HardPart | None:
        try:
            name, password = _name_and_password(data)
        except ValueError:
            return None
        self._part = None if name == NODE_USER else self._owner.to_prove(name, password)
        return self._part

    def step(self, data: bytes) -> bytes:
        try:
            self.claimed = data.decode().split("\0")[1]
            name, password = _name_and_password(data)
        except (ValueError, IndexError):
            raise self._owner.failed() from None
        self.identity = self._owner.check_password(name, password, self._part)
        return b""


def _name_and_password(data: bytes) -> tuple[str, str]:
    """Raises ValueError."""
    authorized, name, password = data.decode().split("\0")
    if authorized not in {"", name} or not name:
        raise ValueError("somebody else than the name is to be authorized")
    return name, password


class _Bearer:
    """RFC 7628. A failure is told at once, as Kafka's clients take it."""

    def __init__(self, owner: Authenticator) -> None:
        self.identity: Identity | None = None
        self.claimed = ""
        self._owner = owner

    def hard_part(self, data: bytes) -> HardPart | None:  # noqa: ARG002 - others have one
        return None

    def step(self, data: bytes) -> bytes:
        try:
            parts = data.decode().split("\x01")
        except ValueError:
            raise self._owner.failed() from None
        token = next((part[12:] for part in parts if part.lower().startswith("auth=bearer ")), "")
        token = token.strip()
        self.claimed = self._owner.claimed_by(token)
        self.identity = self._owner.check_token(token)
        return b""


class _Scram:
    """RFC 5802."""

    def __init__(self, owner: Authenticator, mechanism: str) -> None:
        self.identity: Identity | None = None
        self.claimed = ""
        self._owner = owner
        self._mechanism = mechanism
        self._found: Credential | None = None
        self._known = False
        self._server = passwords.mechanism_of(mechanism).make_server(
            self._look_up, s_nonce=system.new_uuid().hex
        )
        self._steps = 0

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self.claimed = name
        self._found, self._known = found, _ = self._owner.credential(self._mechanism, name)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def hard_part(self, data: bytes) -> HardPart | None:  # noqa: ARG002 - others have one
        return None

    def step(self, data: bytes) -> bytes:
        from scramp import ScramException

        self._steps += 1
        try:
            if self._steps == 1:
                self._server.set_client_first(data.decode())
                if not self._known and not self._owner.knows_users:
                    raise self._owner.failed()  # not after the next message: the users may have come by then
                return str(self._server.get_server_first()).encode()
            if self._steps > 2:
                raise self._owner.failed()
            self._server.set_client_final(data.decode())
            answer = str(self._server.get_server_final()).encode()
        except (ScramException, ValueError):
            raise self._owner.failed() from None
        if not self._known:
            raise self._owner.failed()
        principal = NODE if self.claimed == NODE_USER else Principal("User", self.claimed)
        self.identity = Identity(principal, self._mechanism, self._found)
        return answer
