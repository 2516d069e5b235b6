"""Spark and a cluster that takes TLS and asks who is there: options and jobs get in, and nothing shows what with."""

import json
import os
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.client.access import Access, Addresses, access_of, access_with
from antiphon.client.account import Account
from antiphon.errors import InvalidRequestError
from antiphon.lake.pipeline import read_pipeline
from antiphon.model.requests import AlterUser
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from antiphon.spark import jobs, servers, upserts
from antiphon.spark.jobs.replay_cut import Cut
from antiphon.spark.jobs.replay_frames import source_frame
from antiphon.spark.option_values import parse_servers
from antiphon.spark.read.options import parse_read
from antiphon.spark.servers import Servers, access_in, options_of
from tests.security.certificates import client_files, server_files
from tests.security.test_secure_listeners import Secure

pytestmark = pytest.mark.spark

PASSWORD = "a-word-that-nobody-may-see"
SECURITY = {"authentication": True, "super_users": ["User:spark"]}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """One node with TLS and authentication, and the user `spark`."""
    directory = tmp_path_factory.mktemp("secure")
    tls = server_files(directory / "node-0")
    made = Secure(directory, security=Security(tls=tls, **SECURITY))  # type: ignore[arg-type]
    made.call(made.server.node.gateway.administer(AlterUser("spark", credentials(PASSWORD))))
    with connect(made) as db:
        for topic in ("secured", "streamed", "counted"):
            db.create_topic(topic)
        for table in ("rows", "loaded", "counts"):
            db.create_table(table)
    yield made
    made.stop()


@pytest.fixture
def options(secure: Secure) -> dict[str, str]:
    return {
        "servers": secure.native, "tls": str(secure.authority), "user": "spark", "password": PASSWORD, "timeoutMs": "15000",
    }  # fmt: skip


def test_a_write_and_a_read_get_in_and_no_plan_shows_how(
    spark: Any, options: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("ANTIPHON_TLS", "ANTIPHON_USER", "ANTIPHON_PASSWORD", "ANTIPHON_TOKEN"):
        assert name not in os.environ, "this is about options"
    made = spark.range(0, 50, 1, 1).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
    made.write.format("antiphon").mode("append").options(**options, topic="secured").save()
    frame = spark.read.format("antiphon").options(**options, topic="secured").load()
    assert frame.count() == 50
    execution = frame._jdf.queryExecution()
    shown = [execution.toString(), execution.explainString(explain_mode(spark, "extended"))]
    frame.explain(True)
    frame.explain("formatted")
    store = spark._jsparkSession.sharedState().statusStore().executionsList()
    for each in (store.apply(number) for number in range(store.size())):
        shown += [each.physicalPlanDescription(), each.details()]
    said = capfd.readouterr()
    assert "Physical Plan" in said.out
    assert [text for text in (*shown, said.out, said.err) if PASSWORD in text] == []
    config = getattr(spark._jvm.org.apache.spark.internal.config, "package$")
    redacted = re.compile(getattr(config, "MODULE$").SECRET_REDACTION_PATTERN().defaultValueString())
    assert all(redacted.search(name) for name in ("password", "token")), "where Spark does show options"


def test_a_stream_gets_in_and_leaves_nothing_of_it_behind(
    spark: Any, secure: Secure, options: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(secure) as db:
        db.topic("streamed").append(b"a value", key=b"a key")
    query = (
        spark.readStream.format("antiphon").options(**options, topic="streamed", startingOffsets="earliest").load()
        .select("key", "value").writeStream.format("antiphon").options(**options, table="rows")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(100)
    query.explain(True)
    with connect(secure) as db:
        row = db.table("rows").get("a key")
    assert row is not None
    assert row.value == b"a value"
    files = [file for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    assert len(files) > 3
    said = capfd.readouterr()
    shown = [json.dumps(progress, default=str) for progress in query.recentProgress]
    shown += [file.read_text(errors="replace") for file in files]
    assert [text for text in (*shown, said.out, said.err) if PASSWORD in text] == []


def explain_mode(spark: Any, name: str) -> Any:
    return spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(name)


def test_a_wrong_password_fails_at_once_and_is_not_shown(spark: Any, options: dict[str, str]) -> None:
    began = time.monotonic()
    with pytest.raises(Exception, match="authentication failed") as caught:
        spark.read.format("antiphon").options(
            **{**options, "password": "not-it-at-all"}, topic="secured"
        ).load().count()
    assert "not-it-at-all" not in str(caught.value)
    assert time.monotonic() - began < 14, "it does not try until its time is over"


def test_jobs_take_servers_with_an_access(spark: Any, secure: Secure, options: dict[str, str]) -> None:
    place = servers(secure.native, tls=str(secure.authority), user="spark", password=PASSWORD)
    made = spark.range(0, 20, 1, 1).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    loaded = jobs.bulk_load(
        made, place, "loaded", key="key", value="value", tasks_per_shard=1, timeout_ms=30_000
    )
    assert loaded.rows == 20
    report = jobs.audit(spark, place, topics=["secured"], replica_timeout_s=30)
    assert report.verdict == "agree", report
    replayed = jobs.replay_table(spark, place, "loaded", to_table="replayed", timeout_ms=30_000)
    with connect(secure) as db:
        rows = {row.key: row.value for row in db.table("replayed").scan()}
    assert rows == {b"%d" % number: b"%d" % number for number in range(20)}
    assert PASSWORD not in f"{place!r} {loaded} {report} {replayed}"


def test_upserts_of_foreach_batch_get_in(
    spark: Any, secure: Secure, options: dict[str, str], tmp_path: Path
) -> None:
    place = servers(secure.native, tls=str(secure.authority), user="spark", password=PASSWORD)
    with connect(secure) as db:
        db.topic("counted").append_batch([b"a", b"b", b"a"])
    words = (
        spark.readStream.format("antiphon")
        .options(**options, topic="counted", startingOffsets="earliest")
        .load()
    )
    counts = words.groupBy(words.value.cast("string").alias("key")).count()
    query = (
        counts.selectExpr("key", "cast(count as string) as value").writeStream.outputMode("update")
        .foreachBatch(upserts(place, "counts")).option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(100)
    with connect(secure) as db:
        assert {row.key: row.value for row in db.table("counts").scan()} == {b"a": b"2", b"b": b"1"}


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """One node that turns away who shows no certificate; alice's is that of a super user."""
    directory = tmp_path_factory.mktemp("mutual")
    tls = server_files(directory / "node-0", "required")
    supers = ["User:CN=alice", "User:CN=node"]
    made = Secure(directory, security=Security(tls=tls, authentication=True, super_users=supers))
    certificate, key = client_files(directory)
    with antiphon.connect(made.native, tls=(made.authority, certificate, key)) as db:
        db.create_topic("shown")
    yield made
    made.stop()


def test_a_certificate_is_shown_by_options(
    spark: Any, mutual: Secure, capfd: pytest.CaptureFixture[str]
) -> None:
    """Executors have no file and no environment: tasks show what the driver has read."""
    assert not [name for name in os.environ if name.startswith("ANTIPHON_TLS")], "this is about options"
    certificate, key = client_files(mutual.directory)
    common = {"servers": mutual.native, "tls": str(mutual.authority), "topic": "shown", "timeoutMs": "15000"}
    options = {**common, "tlsCertificate": str(certificate), "tlsKey": str(key)}
    made = spark.range(0, 30, 1, 2).selectExpr("cast(id as string) as key", "cast(id * 2 as string) as value")
    made.write.format("antiphon").mode("append").options(**options).save()
    frame = spark.read.format("antiphon").options(**options).load()
    frame._jdf.queryExecution().toRdd()  # for which the driver reads the files
    key.rename(key.with_suffix(".moved"))
    try:
        assert len(frame.collect()) == 30
    finally:
        key.with_suffix(".moved").rename(key)
    frame.explain(True)
    place = servers(
        mutual.native, tls=str(mutual.authority), tls_certificate=str(certificate), tls_key=str(key)
    )
    report = jobs.audit(spark, place, topics=["shown"], replica_timeout_s=30)
    assert report.verdict == "agree", report
    with pytest.raises(Exception, match="if it wants a certificate of the client"):
        spark.read.format("antiphon").options(**{**common, "timeoutMs": "1000"}).load().count()
    said = capfd.readouterr()
    secret = key.read_text().splitlines()[2]
    assert secret not in f"{frame._jdf.queryExecution().toString()} {place!r} {report} {said.out} {said.err}"


def connect(secure: Secure) -> antiphon.Client:
    return antiphon.connect(secure.native, tls=secure.authority, user="spark", password=PASSWORD)


# -- without Spark --------------------------------------------------------------------------------------------------------


def test_options_are_parsed_once_and_travel(secure: Secure, options: dict[str, str]) -> None:
    found = parse_read({**options, "topic": "t"}, streaming=True)
    assert PASSWORD not in repr(found)
    assert "BEGIN CERTIFICATE" not in repr(found)
    there = pickle.loads(pickle.dumps(found)).target.servers
    assert there == found.target.servers
    access = access_with(there)
    assert access is not None
    assert access.account == Account("spark", PASSWORD)
    assert PASSWORD not in repr(access)
    assert access.authorities == secure.authority.read_text(), "an executor needs no file"
    assert access_with(parse_servers("a:1")) is None, "then the environment counts"
    place = pickle.loads(pickle.dumps(Servers("a:1", {"user": "u", "password": "p"})))
    assert options_of(place) == {"servers": "a:1", "user": "u", "password": "p"}
    assert access_with(parse_servers(place)) == Access(Account("u", "p"))
    assert repr(place) == "'a:1'"


def test_a_certificate_travels_as_text(tmp_path: Path, secure: Secure) -> None:
    certificate, key = client_files(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    words = {"tls": str(secure.authority), "tlsCertificate": str(certificate), "TLSKEY": str(key)}
    found = parse_read({"servers": "a:1", "topic": "t", **words}, streaming=False)
    access = access_with(pickle.loads(pickle.dumps(found)).target.servers)
    assert access is not None
    assert access.shown is not None
    assert access.shown[:2] == (certificate.read_text(), key.read_text())
    for file in (certificate, key):
        file.unlink()
    context = access.dialing()("a", 1)  # type: ignore[misc]  # it says how to connect
    assert context is not None
    assert "PRIVATE" not in f"{found!r} {access!r} {access.shown!r}"
    at_once = access_in({"tls": "on", "tlsCertificate": str(both)})
    assert at_once is not None
    assert at_once.authorities == ""
    assert at_once.dialing() is not None
    assert options_of(servers("a:1", tls="on", tls_certificate="c", tls_key="k")) == {
        "servers": "a:1", "tls": "on", "tlsCertificate": "c", "tlsKey": "k",
    }  # fmt: skip


class Recorder:
    """A session that only notes the options of what it is to read."""

    def __init__(self) -> None:
        self.read = self
        self.found: dict[str, str] = {}

    def format(self, _name: str) -> "Recorder":
        return self

    def options(self, **options: str) -> "Recorder":
        self.found = options
        return self

    def load(self) -> None:
        return None


def test_what_jobs_read_they_read_with_the_access() -> None:
    session: Any = Recorder()
    place = servers("a:1", tls="off", user="u", password=PASSWORD)
    cut = Cut("t", "00", is_table=True, starts={}, ends={})
    source_frame(session, place, cut, 1000)
    wanted = {"servers": "a:1", "tls": "off", "user": "u", "password": PASSWORD}
    assert session.found == {**wanted, "table": "t", "timeoutMs": "1000"}
    assert type(session.found["servers"]) is str, "what Spark is told is text"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"user": "alice"}, "user and password belong together"),
        ({"user": "alice", "password": "p", "token": "t"}, "not both"),
        ({"tls": "/nowhere.pem"}, "cannot read /nowhere.pem"),
        ({"tls": __file__}, "holds no certificates"),
        ({"tls": "on", "tls_certificate": "/nowhere.pem"}, "cannot read /nowhere.pem"),
        ({"tls": "on", "tls_certificate": __file__}, f"{__file__} are not a client's certificate"),
        ({"tls": "on", "tls_key": __file__}, "without the certificate"),
        ({"tls": "off", "tls_certificate": __file__}, "shown with TLS"),
        ({"tls_certificate": __file__}, "shown with TLS"),
    ],
)
def test_what_does_not_fit_is_refused(words: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        access_of(**words)


def test_words_for_tls() -> None:
    assert access_of(tls="ON") == Access(None, True)
    assert access_of(tls="off") == Access(None, False)
    assert access_of() is None
    assert repr(Addresses([("a", 1)], Access(Account("u", PASSWORD)))) == "(('a', 1),)"


def test_a_pipeline_file_says_how_to_get_in(tmp_path: Path, secure: Secure) -> None:
    (tmp_path / "authority.pem").write_text(secure.authority.read_text())
    certificate, key = client_files(tmp_path)
    (tmp_path / "word").write_text(PASSWORD + "\n")
    text = """
    servers = "a:1"
    tls = "authority.pem"
    tls_certificate = "alice.pem"
    tls_key = "alice.key"
    user = "spark"
    password_file = "word"
    [[job]]
    source.topic = "t"
    target = {kind = "parquet", path = "p"}
    [[job]]
    source = {table = "u", user = "other", password = "its own"}
    target = {kind = "delta", path = "q"}
    """
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(InvalidRequestError, match="password or password_file"):
        read_pipeline(tmp_path / "p.toml")
    (tmp_path / "p.toml").write_text(text.replace(', password = "its own"', ""))
    first, second = read_pipeline(tmp_path / "p.toml")
    assert PASSWORD not in f"{first} {second}"
    assert isinstance(first.servers, Servers)
    assert first.servers.access_options == {
        "tls": str(tmp_path / "authority.pem"), "user": "spark", "password": PASSWORD,
        "tlsCertificate": str(certificate), "tlsKey": str(key),
    }  # fmt: skip
    assert access_with(parse_servers(second.servers)).account == Account("other", PASSWORD)  # type: ignore[union-attr]
    assert "user" not in second.options
