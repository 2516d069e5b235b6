"""Mutants of logins by tokens, passwords and certificates at each listener, of rates of connections, and of quotas that
change while somebody waits.
"""

from typing import Any, Final

from antiphon.gateway.quotas import Quotas, _Bucket
from antiphon.http.connection import HttpConnection
from antiphon.kafka.handlers.logins import LoginHandler
from antiphon.kafka.listener import KafkaListener
from antiphon.native.listener import NativeListener
from antiphon.oxia.calls import OxiaCalls
from antiphon.oxia.listener import OxiaListener
from antiphon.security import tls
from antiphon.security.authenticator import Authenticator
from antiphon.security.tokens import TokenCheck
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_IDENTITIES: Final[dict[str, Any]] = {**CALM, **only(appenders=1, putters=1, identities=1, fault_ms=4_000)}

IDENTITY_MUTANTS: Final = (
    ClusterMutant(
        "identity-token-outlives-itself",
        "who has logged in with a token goes on when it has expired",
        Edit(Authenticator, "holds", "if identity.expires_s is not None and", "if False and"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-token-has-expired",
        "a login takes a token for half a minute after it has expired, and the look at who has logged in does not",
        Edit(
            TokenCheck,
            "_checked",
            '_seconds(claims, "exp", None) <= now_s:',
            '_seconds(claims, "exp", None) <= now_s - LEEWAY_S:',
        ),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-token-is-for-others",
        "a token is taken whomever it was made for",
        Edit(TokenCheck, "_checked", "if audience and audience not in", "if False and audience not in"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-token-keys-are-read-once",
        "a node goes on with the keys of tokens that it had when it was started",
        Edit(TokenCheck, "_read_keys", "if stamp == self._stamp:", "if self._stamp is not None:"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-token-without-a-lifetime",
        "Kafka's clients are not told when their token expires",
        Edit(LoginHandler, "authenticate", "if expires_s is not None:", "if False:"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-secrets-are-sent-plainly",
        "passwords and tokens are taken by connections that others can read",
        Edit(Authenticator, "mechanisms", "if private or name not in REVEALING", "if True"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-any-password",
        "a password that is sent as it is only has to be somebody's name with anything behind it",
        Edit(
            Authenticator,
            "check_password",
            "if not part.proves or not part.known or",
            "if not part.known or",
        ),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-certificate-backwards",
        "the name of who has a certificate is its subject with the first part first",
        Edit(tls, "distinguished_name", "in reversed(subject)", "in subject"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-http-guesses-at-once",
        "a login over HTTP that fails is answered at once",
        Edit(
            HttpConnection,
            "_answer_as",
            'if refusal is not None and refusal[0] == UNAUTHORIZED and b"authorization" in plain:',
            "if False:",
        ),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-oxia-guesses-at-once",
        "a login of Oxia's clients that fails is answered at once",
        Edit(OxiaCalls, "_logged_in", "await asyncio.sleep(FAILED_DELAY_S)", "pass"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-oxia-asks-nobody",
        "Oxia's clients need not say who they are",
        Edit(OxiaCalls, "_rights", "if not session.is_open:", "if False:"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-oxia-knows-the-first-one",
        "all calls on a connection of Oxia's are those of whoever made the first one",
        Edit(
            OxiaListener,
            "session_for",
            "if authorization == connection.authorization and session.holds and not session.has_failed:",
            "if session.identity is not None and session.holds:",
        ),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-oxia-certificate-is-enough",
        "what a client of Oxia's says that has a certificate is not looked at",
        Edit(
            OxiaCalls,
            "_rights",
            "if authorization and not session.has_logged_in:",
            "if authorization and session.identity is None:",
        ),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "identity-oxia-forgets-streams-of-others",
        "where others have asked on a connection of Oxia's since, a stream of who is no user any more goes on",
        Edit(OxiaListener, "_look_around", "if connection.is_shared:", "if False:"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-knows-no-bound",
        "an address may make any number of connections",
        Edit(Quotas, "admits", "if bucket.left < 1.0:", "if False:"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-kafka-does-not-ask",
        "Kafka's listener takes connections whatever their rate",
        Edit(KafkaListener, "connected", "or not config.quotas.admits(host)", ""),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-native-does-not-ask",
        "the native listener takes connections whatever their rate",
        Edit(NativeListener, "greeted", "crowded or not self.quotas.admits(session.host)", "crowded"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-http-does-not-ask",
        "the HTTP listener takes connections whatever their rate",
        Edit(
            HttpConnection,
            "connection_made",
            "elif not self._listener.quotas.admits(self.host):",
            "elif False:",
        ),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-oxia-does-not-ask",
        "Oxia's listener takes connections whatever their rate",
        Edit(OxiaListener, "opened", "if not self.quotas.admits(connection.host):", "if False:"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-begins-with-nothing",
        "an address that has made no connection has to wait for its second one",
        Edit(_Bucket, "__init__", "self.left = rate * WINDOW_S", "self.left = 1.0"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rate-is-used-up-for-good",
        "what a limit holds is not filled again",
        Edit(_Bucket, "fill", "self.left + (now_s - self._at_s) * rate", "self.left"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rated-waits-on",
        "who waits because of a quota waits on when it is another one",
        Edit(Quotas, "follow", "asyncio.get_running_loop().call_soon(mute.end)", "pass"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rated-goes-by-the-old-one",
        "which limit counts is decided once, whatever becomes of the quotas",
        Edit(Quotas, "follow", "self._decided.clear()", "pass"),
        options=_IDENTITIES,
    ),
    ClusterMutant(
        "rated-oxia-waits-on",
        "a call of Oxia's waits as long as it was to when it began to, whatever becomes of the quota",
        Edit(
            OxiaCalls,
            "_pays",
            "await quotas.wait(min(owed_s, WAIT_S_MAX))",
            "await asyncio.sleep(min(owed_s, WAIT_S_MAX))",
        ),
        options=_IDENTITIES,
    ),
)
