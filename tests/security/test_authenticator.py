"""Logins: the vectors of RFC 7677, what fails and how, and what is kept of passwords."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from scramp import ScramClient
from structlog.testing import capture_logs

from antiphon.errors import InvalidRequestError, NotReadyError, UnauthenticatedError
from antiphon.model.access import AccessBook, AccessDelta, Credential, User
from antiphon.model.cluster import MetadataView
from antiphon.security import passwords
from antiphon.security.account import Account
from antiphon.security.authenticator import Authenticator, Login
from antiphon.security.client_login import ClientLogin
from antiphon.security.settings import OAuth, Security

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = passwords.credential("SCRAM-SHA-256", "pencil", SALT, 4096)
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


class Counters:
    denied = 0
    logins_failed = 0


def authenticator(settings: Security | None = None, *users: User) -> Authenticator:
    book = AccessBook()
    found = users or (User("user", (PENCIL,)), User("alice", passwords.credentials("wonder")))
    book.apply(AccessDelta(users=found), whole=True)
    return Authenticator(settings or Security(authentication=True), book, Counters(), b"secret" * 6)


class Given:
    """What `system.new_uuid` returns where the nonce is the RFC's."""

    hex = NONCE


def test_the_exchange_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.system.new_uuid", Given)
    login = authenticator().begin("SCRAM-SHA-256", private=False)
    first = login.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == f"r=rOprNGfwEbeRWgbNEkqO{NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert who(login) is None
    last = login.step(
        f"c=biws,r=rOprNGfwEbeRWgbNEkqO{NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert who(login) == "User:user"


def who(login: Login) -> str | None:
    return None if login.identity is None else str(login.identity.principal)


def log_in(owner: Authenticator, mechanism: str, user: str, password: str) -> Login:
    login = owner.begin(mechanism, private=True)
    if mechanism == "PLAIN":
        login.step(f"\0{user}\0{password}".encode())
        return login
    client = ScramClient([mechanism], user, password)
    client.set_server_first(login.step(client.get_client_first().encode()).decode())
    client.set_server_final(login.step(client.get_client_final().encode()).decode())
    return login


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_node_that_knows_no_users_yet_refuses_nobody_for_good(mechanism: str) -> None:
    """A client that is told that its password is wrong gives up; this one tries again."""
    book = MetadataView("c").access
    owner = Authenticator(Security(authentication=True), book, Counters(), b"secret" * 6)
    with pytest.raises(NotReadyError, match="just started"):
        log_in(owner, mechanism, "alice", "wonder")
    book.apply(AccessDelta(), whole=True)
    with pytest.raises(UnauthenticatedError):
        log_in(owner, mechanism, "alice", "wonder")


def test_a_login_does_not_begin_before_the_users_are_known() -> None:
    """With an answer to its first message it would be a stranger's, also if its user is known by the second."""
    book = MetadataView("c").access
    owner = Authenticator(Security(authentication=True), book, Counters(), b"secret" * 6)
    first = ScramClient(["SCRAM-SHA-256"], "alice", "wonder").get_client_first().encode()
    with pytest.raises(NotReadyError, match="just started"):
        owner.begin("SCRAM-SHA-256", private=True).step(first)
    own = owner.own_account
    assert who(log_in(owner, "SCRAM-SHA-256", own.user, own.password)) is not None, "nodes need no users"
    book.apply(AccessDelta(users=(User("alice", passwords.credentials("wonder")),)), whole=True)
    assert who(log_in(owner, "SCRAM-SHA-256", "alice", "wonder")) == "User:alice"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_right_wrong_and_unknown(mechanism: str) -> None:
    owner = authenticator()
    identity = log_in(owner, mechanism, "alice", "wonder").identity
    assert identity is not None
    assert (str(identity.principal), identity.mechanism) == ("User:alice", mechanism)
    told = []
    with capture_logs() as lines:
        for user, password in (("alice", "wrong"), ("nobody", "wonder"), ("nobody", "wrong")):
            with pytest.raises(UnauthenticatedError) as caught:
                log_in(owner, mechanism, user, password)
            told.append((caught.value.message, caught.value.details))
    assert told == [("authentication failed", {})] * 3, "the same whatever was wrong"
    assert not any("wonder" in str(line) or "wrong" in str(line) for line in lines)


def test_an_unknown_user_looks_like_any_other() -> None:
    owner = authenticator()
    for name in ("alice", "nobody"):
        answers = []
        for _ in range(2):
            login = owner.begin("SCRAM-SHA-256", private=False)
            answer = login.step(f"n,,n={name},r=abc".encode()).decode()
            answers.append(dict(part.split("=", 1) for part in answer.split(",")))
        assert answers[0]["s"] == answers[1]["s"], "the salt is the same each time"
        assert len(base64.b64decode(answers[0]["s"])) == passwords.SALT_BYTES
        assert answers[0]["i"] in {"4096", str(passwords.ITERATIONS)}
        assert answers[0]["r"] != answers[1]["r"], "the nonce is not"


def test_an_unknown_user_takes_no_longer_where_there_are_many() -> None:
    """Else the time to the first answer says which names there are."""

    class Looked(dict[str, User]):
        times = 0

        def values(self) -> Any:
            self.times += 1
            return super().values()

    book = AccessBook()
    kept = passwords.SHA_256, passwords.SHA_512
    for n in range(5):
        of_user = tuple(Credential(name, b"s", 5_000 + n, b"k", b"v") for name in kept)
        book.put("user", f"u{n}", User(f"u{n}", of_user))
    book.users = looked = Looked(book.users)
    seen = {passwords.of_nobody(book, kept[0], f"n{n}", b"secret").iterations for n in range(100)}
    assert seen == {5_000 + n for n in range(5)}
    assert looked.times == 1, "once for all of them"
    for n in range(1, 5):
        book.put("user", f"u{n}", None)
    assert passwords.of_nobody(book, kept[0], "n", b"secret").iterations == 5_000
    assert looked.times == 2


def test_the_same_time_for_wrong_and_unknown() -> None:
    owner = authenticator()
    rounds: dict[str, int] = {}
    made: list[str] = []
    original = passwords.credential

    def counted(mechanism: str, password: str, salt: bytes | None = None, iterations: int = 1) -> Credential:
        made.append(mechanism)
        rounds[password] = rounds.get(password, 0) + iterations
        return original(mechanism, password, salt, iterations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "credential", counted)
        for user in ("alice", "nobody"):
            made.clear()
            with pytest.raises(UnauthenticatedError):
                log_in(owner, "PLAIN", user, "guess")
            assert made == ["SCRAM-SHA-256"], "one derivation, whoever it is"


def test_an_exchange_cannot_be_replayed() -> None:
    owner = authenticator()
    sent: list[bytes] = []
    client = ScramClient(["SCRAM-SHA-256"], "alice", "wonder")
    login = owner.begin("SCRAM-SHA-256", private=False)
    sent.append(client.get_client_first().encode())
    client.set_server_first(login.step(sent[0]).decode())
    sent.append(client.get_client_final().encode())
    login.step(sent[1])
    assert who(login) == "User:alice"
    again = owner.begin("SCRAM-SHA-256", private=False)
    again.step(sent[0])
    with pytest.raises(UnauthenticatedError):
        again.step(sent[1])
    with pytest.raises(UnauthenticatedError):
        login.step(sent[1])


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"n,,", b"p=tls-unique,,n=alice,r=a", b"n,,n=alice", b"n" * 40_000, b"\0\0\0\0"],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_what_is_no_message_fails_a_login(mechanism: str, data: bytes, keys: "Keys") -> None:
    login = authenticator(keys.settings).begin(mechanism, private=True)
    with pytest.raises(UnauthenticatedError):
        login.step(data)
    assert who(login) is None


def test_what_reveals_a_secret_needs_a_private_connection(keys: "Keys") -> None:
    owner = authenticator(keys.settings)
    assert owner.mechanisms(private=False) == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert set(owner.mechanisms(private=True)) == {"PLAIN", "OAUTHBEARER", "SCRAM-SHA-256", "SCRAM-SHA-512"}
    for mechanism in ("PLAIN", "OAUTHBEARER", "GSSAPI"):
        with pytest.raises(UnauthenticatedError, match="not served"):
            owner.begin(mechanism, private=False)
    assert "OAUTHBEARER" not in authenticator().mechanisms(private=True), "there are no keys"


def test_an_identity_holds_while_its_credential_does() -> None:
    owner = authenticator()
    identity = log_in(owner, "SCRAM-SHA-512", "alice", "wonder").identity
    assert identity is not None
    assert owner.holds(identity)
    owner._book.apply(AccessDelta(users=(User("alice", passwords.credentials("wonder")),)), whole=False)
    assert not owner.holds(identity), "another salt: the password was set anew"
    again = log_in(owner, "SCRAM-SHA-512", "alice", "wonder").identity
    assert again is not None
    owner._book.apply(AccessDelta(gone_users=("alice",)), whole=False)
    assert not owner.holds(again)


def test_nothing_shows_a_secret() -> None:
    account = Account("alice", "wonder", "token-x")
    owner = authenticator()
    identity = log_in(owner, "PLAIN", "alice", "wonder").identity
    assert identity is not None
    assert identity.proof is not None
    for shown in (repr(account), str(account), repr(identity)):
        assert "wonder" not in shown
        assert "token-x" not in shown
        assert str(identity.proof.stored_key) not in shown


# -- the client's side ------------------------------------------------------------------------------------------------


def test_our_client_logs_in_and_wants_proof_of_the_node() -> None:
    owner = authenticator()
    client = ClientLogin(Account("alice", "wonder"), owner.mechanisms(private=False), "n:1")
    login = owner.begin(client.mechanism, private=False)
    answer = login.step(client.first())
    second = client.next(answer)
    assert second is not None
    last = login.step(second)
    assert [client.is_proved, client.next(last), client.is_proved] == [False, None, True]
    impostor = ClientLogin(Account("alice", "wonder"), ("SCRAM-SHA-256",), "n:1")
    login = owner.begin("SCRAM-SHA-256", private=False)
    assert impostor.next(login.step(impostor.first())) is not None
    with pytest.raises(UnauthenticatedError, match="did not prove"):
        impostor.next(b"v=" + base64.b64encode(b"x" * 32))
    for mechanisms, account in (
        ((), Account("a", "b")),
        (("PLAIN",), Account()),
        (("PLAIN",), Account(token="t")),
    ):
        with pytest.raises(UnauthenticatedError):
            ClientLogin(account, mechanisms, "n:1")


# -- tokens -----------------------------------------------------------------------------------------------------------


class Keys:
    def __init__(self, directory: Path) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.file = directory / "keys.json"
        self.settings = Security(
            authentication=True,
            sasl_mechanisms=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
            oauth=OAuth(str(self.file), issuer="https://issuer", audience="antiphon"),
        )
        self.write(self.private)

    def write(self, private: Any) -> None:
        plain = json.loads(ECAlgorithm.to_jwk(private.public_key()))
        self.file.write_text(json.dumps({"keys": [{**plain, "kid": "k1", "alg": "ES256", "use": "sig"}]}))

    def token(self, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        good = {"sub": "carol", "iss": "https://issuer", "aud": "antiphon", "exp": int(time.time()) + 60}
        wanted = {name: value for name, value in {**good, **claims}.items() if value is not None}
        return jwt.encode(wanted, key or self.private, algorithm, headers={"kid": "k1"})


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def bear(owner: Authenticator, token: str) -> Login:
    login = owner.begin("OAUTHBEARER", private=True)
    login.step(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    return login


def test_tokens(keys: Keys) -> None:
    owner = authenticator(keys.settings)
    identity = bear(owner, keys.token()).identity
    assert identity is not None
    assert str(identity.principal) == "User:carol"
    assert identity.expires_s is not None
    assert owner.holds(identity)
    assert not owner.holds(identity._replace(expires_s=time.time() - 1))
    assert bear(owner, keys.token(aud=["others", "antiphon"])).identity is not None
    assert bear(owner, keys.token(nbf=int(time.time()) + 10)).identity is not None, "clocks differ"
    other = ec.generate_private_key(ec.SECP256R1())
    unsigned = jwt.encode({"sub": "carol", "exp": int(time.time()) + 60}, "", "none")
    shared = jwt.encode({"sub": "carol", "exp": int(time.time()) + 60}, keys.file.read_text()[:40], "HS256")
    for token in (
        keys.token(exp=int(time.time()) - 100),
        keys.token(exp=int(time.time()) - 1),
        keys.token(exp=str(int(time.time()) + 60)),
        keys.token(exp=True),
        keys.token(exp=None),
        keys.token(aud="others"),
        keys.token(aud=None),
        keys.token(aud=["others", 5]),
        keys.token(iss="https://others"),
        keys.token(sub=None),
        keys.token(sub=""),
        keys.token(nbf=int(time.time()) + 1000),
        keys.token(iat=int(time.time()) + 1000),
        keys.token(other),
        unsigned,
        shared,
        "",
        "x.y.z",
    ):
        with pytest.raises(UnauthenticatedError, match="authentication failed"):
            bear(owner, token)


def test_who_is_let_in_by_a_token_may_stay(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clock says until when a token is taken, and until when whoever has shown it may stay."""
    owner, now_s = authenticator(keys.settings), time.time()
    token = keys.token(exp=int(now_s) + 60)
    for late_s in (59.0, 61.0, 89.0):
        monkeypatch.setattr("antiphon.system.wall_s", lambda late_s=late_s: int(now_s) + late_s)
        try:
            found = bear(owner, token).identity
        except UnauthenticatedError:
            found = None
        assert (found is not None) == (late_s < 60.0)
        assert found is None or owner.holds(found)


def test_keys_are_read_again_when_they_change(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = authenticator(keys.settings)
    assert bear(owner, keys.token()).identity is not None
    other = ec.generate_private_key(ec.SECP256R1())
    keys.write(other)
    monkeypatch.setattr("antiphon.security.tokens.CHECK_EVERY_S", 0.0)
    assert bear(owner, keys.token(other)).identity is not None
    with pytest.raises(UnauthenticatedError):
        bear(owner, keys.token())
    keys.file.write_text("nonsense")
    assert bear(owner, keys.token(other)).identity is not None, "a file that is broken changes nothing"


def test_a_node_that_is_to_take_tokens_says_what_to_install(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.security.tokens.jwt", None)
    with pytest.raises(InvalidRequestError, match=r"security.oauth.*pip install 'antiphon\[oauth\]'"):
        authenticator(keys.settings)
