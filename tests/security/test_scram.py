"""SCRAM: the RFC's vector, the other side by another library (scramp), and messages that are refused."""

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scramp import ScramClient, ScramException, ScramMechanism
from scramp.utils import saslprep

from antiphon.security.scram import (
    HASHES,
    Client,
    Found,
    Keys,
    ScramError,
    Server,
    keys_of,
    prepared,
    salted,
)

SALT = b"sixteen bytes, ok"
# What SASLprep treats in a way of its own: spaces, marks without width, letters from right to left, what is unassigned.
ODD = "\u00a0\u00ad\u200b\u0627\u05d0a1\u2168\ufb01\U0001f600\u0378\ud800\ue000\ufff9\u0340\U000e0001,="
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters()), min_size=1, max_size=8)


def known(password: str, mechanism: str = "SCRAM-SHA-256") -> Found:
    return Found(SALT, 4096, keys_of(mechanism, salted(mechanism, password, SALT, 4096)))


@given(TEXTS)
@example("\u0627\u0031")
@example("\u0627\u0031\u0628")
@example("I\u00adX")
def test_texts_are_prepared_as_another_library_does_it(text: str) -> None:
    try:
        expected: str | None = saslprep(text)
    except ScramException:
        expected = None
    try:
        found: str | None = prepared(text)
    except ScramError:
        found = None
    assert found == expected


@pytest.mark.parametrize("mechanism", list(HASHES))
@pytest.mark.parametrize("password", ["pencil", "\u2168 \u00a0x", "a=b,c"])
def test_keys_are_those_of_another_library(mechanism: str, password: str) -> None:
    _, stored, server, _ = ScramMechanism(mechanism).make_auth_info(password, 4096, SALT)
    assert known(password, mechanism).keys == (stored, server)


@pytest.mark.parametrize("mechanism", list(HASHES))
@pytest.mark.parametrize("name", ["alice", "a,b=c", "=2C", "J\u00e9r\u00f4me"])
def test_both_sides_understand_those_of_another_library(mechanism: str, name: str) -> None:
    asked: list[str] = []

    def look_up(user: str) -> Found:
        asked.append(user)
        return known("wonder", mechanism)

    theirs = ScramClient([mechanism], name, "wonder")
    ours = Server(mechanism, look_up, "of-node")
    theirs.set_server_first(ours.first(theirs.get_client_first()))
    theirs.set_server_final(ours.final(theirs.get_client_final()))

    def row(user: str) -> tuple[bytes, bytes, bytes, int]:
        asked.append(user)
        return SALT, *known("wonder", mechanism).keys, 4096

    server = ScramMechanism(mechanism).make_server(row)
    client = Client(mechanism, name, "wonder", "of-client")
    server.set_client_first(client.first())
    server.set_client_final(client.final(server.get_server_first()))
    client.check(server.get_server_final())
    assert asked == [prepared(name)] * 2


FIRST = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
ANSWER = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_the_client_of_rfc_7677() -> None:
    client = Client("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == FIRST
    assert client.final(ANSWER) == (
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n,",
        "n,,",
        "x,,n=u,r=a",
        "p=tls-unique,,n=u,r=a",
        "n,a=other,n=u,r=a",
        "n,,r=a,n=u",
        "n,,n=u",
        "n,,n=,r=a",
        "n,,n=u,r=",
        "n,,n=u,r=\u00e9",
        "n,,n=u,r=a b",
        "n,,m=x,n=u,r=a",
        "n,,n=u,r=a,m=x",
        "n,,n=u,r=a,x=1,x=2",
        "n,,n=u,r=a,1=2",
        "n,,n=a=b,r=a",
        "n,,n=a=2=2C,r=a",
        "n,,n=\u0007,r=a",
        "n,,n=\u00ad,r=a",
    ],
)
def test_a_first_message_that_is_none(message: str) -> None:
    with pytest.raises(ScramError):
        Server("SCRAM-SHA-256", lambda user: known("x"), "s").first(message)


@pytest.mark.parametrize("message", ["n,,n=u,r=a", "y,,n=u,r=a", "n,,n=u,r=a,x=1"])
def test_a_first_message_that_is_one(message: str) -> None:
    answer = Server("SCRAM-SHA-256", lambda user: known("x"), "-s").first(message)
    assert answer == f"r=a-s,s={base64.b64encode(SALT).decode()},i=4096"


def test_a_proof_is_for_one_login_only() -> None:
    def login(nonce: str) -> Server:
        server = Server("SCRAM-SHA-256", lambda user: known("wonder"), nonce)
        server.first("n,,n=u,r=client")
        return server

    client = Client("SCRAM-SHA-256", "u", "wonder", "client")
    last = client.final(Server("SCRAM-SHA-256", lambda user: known("wonder"), "1").first(client.first()))
    server_says = login("1").final(last)
    client.check(server_says)
    unproved, _, proof = last.partition(",p=")
    wrong = base64.b64encode(bytes(32)).decode()
    for changed in [
        unproved,
        f"{unproved},p={wrong}",
        f"{unproved},p={proof[:-4]}",
        f"{unproved},x=1,p={proof}",
        f"{unproved},p={proof},x=1",
        last.replace("c=biws", "c=eSws"),  # y,,
        last.replace("r=client1", "r=client2"),
        last.replace("c=biws", "c=biws="),
        "",
    ]:
        with pytest.raises(ScramError):
            login("1").final(changed)
    with pytest.raises(ScramError):
        login("2").final(last)
    for other in (f"v={wrong}", "e=other-error", "v=", server_says[:-4]):
        with pytest.raises(ScramError):
            client.check(other)
    with pytest.raises(ScramError):
        Client("SCRAM-SHA-256", "u", "wonder", "client").check(server_says)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("i=4096", "i=4095"),
        ("i=4096", "i=10000001"),
        ("i=4096", "i=-4096"),
        ("i=4096", "i=\u0664\u0660\u0669\u0666"),
        ("i=4096", "i=" + "9" * 5_000),
        (",i=4096", ""),
        ("i=4096", "i=4096,m=x"),
        ("s=W22", "s=?22"),
        ("r=rOpr", "r=other"),
        ("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""),
        (ANSWER, "e=unknown-user"),
    ],
)
def test_an_answer_of_a_server_that_is_not_taken(was: str, becomes: str) -> None:
    client = Client("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    client.first()
    with pytest.raises(ScramError):
        client.final(ANSWER.replace(was, becomes))


@pytest.mark.parametrize(("name", "password"), [("", "x"), ("\u00ad", "x"), ("a\n", "x"), ("a", "x\n")])
def test_a_client_without_a_proper_name_or_password(name: str, password: str) -> None:
    with pytest.raises(ScramError):
        Client("SCRAM-SHA-256", name, password, "n")


@given(st.text(max_size=40))
@example("n,,n=u,r=a")
def test_whatever_is_said_is_answered_or_refused(message: str) -> None:
    for asked in (message, f"n,,n=u,r=a{message}", f"n,,{message}"):
        server = Server("SCRAM-SHA-256", lambda user: Found(SALT, 4096, Keys(b"x" * 32, b"y" * 32)), "s")
        try:
            server.first(asked)
        except ScramError:
            continue
        with pytest.raises(ScramError):
            server.final(message)
