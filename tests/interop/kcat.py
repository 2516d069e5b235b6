"""kcat, the command-line client that Debian packages, with the librdkafka that belongs to it, which is years old."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.interop.suite import FOUR_PARTITIONS, Outcome, UnexpectedError, carried_out
from tests.peers.servers.peer import UnavailableError, run_tool

PACKAGES: Final = ("kcat", "librdkafka1", "libyajl2")
STEP_S: Final = 60.0
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
TOPIC: Final = "kcat"
LINES: Final = "".join(f"key-{number}:value {number}\n" for number in range(100))
Step = Callable[[], None]


class Program:
    """Runs kcat; `options` come first each time."""

    def __init__(self, program: str, environment: dict[str, str], *options: str) -> None:
        self._words = (program, *options)
        self.environment = os.environ | environment

    def at(self, kafka: str) -> "Program":
        """The same with these nodes."""
        return Program(self._words[0], self.environment, "-b", kafka)

    def command(self, *arguments: str) -> tuple[str, ...]:
        """The words of a command."""
        return (*self._words, *arguments)

    def __call__(self, *arguments: str, given: str = "") -> str:
        """What kcat prints. Raises UnexpectedError if it fails."""
        done = subprocess.run(
            self.command(*arguments),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_S,
            env=self.environment,
        )
        if done.returncode:
            raise UnexpectedError(f"kcat {' '.join(arguments)[:60]}: {(done.stdout + done.stderr)[-250:]}")
        return done.stdout + (done.stderr if arguments == ("-V",) else "")


class Kcat:
    """See the module's text."""

    name = "kcat"
    title = "kcat of Debian"
    differences: dict[str, str] = {}
    settings = FOUR_PARTITIONS

    def __init__(self) -> None:
        self._program = Program("", {})

    def get(self, folder: Path) -> None:
        """See Suite. What is installed is used, else Debian's packages are unpacked."""
        program, libraries = shutil.which("kcat") or shutil.which("kafkacat") or "", ""
        if not program:
            root = self._unpacked(folder)
            program = str(root / "usr" / "bin" / "kcat")
            libraries = os.pathsep.join(str(one) for one in (root / "usr" / "lib").glob("*-linux-gnu"))
        self._program = Program(program, {"LD_LIBRARY_PATH": libraries} if libraries else {})
        version = re.search(r"Version (\S+).*librdkafka (\S+)", self._program("-V"))
        if version is None:
            raise UnavailableError(f"{program} does not tell its version")
        self.title = f"kcat {version[1]} with librdkafka {version[2]}"

    @staticmethod
    def _unpacked(folder: Path) -> Path:
        root = folder / "kcat"
        if root.is_dir():
            return root
        part = folder / "kcat.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        run_tool(("apt-get", "download", *PACKAGES), part)
        for package in part.glob("*.deb"):
            run_tool(("dpkg", "-x", str(package), str(part)), part)
        part.rename(root)
        return root

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        return carried_out(Steps(self._program.at(kafka)).all())


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise UnexpectedError(f"found {str(found)[:200]!r}, not {str(wanted)[:200]!r}")


class Steps:
    """What is done with kcat, in order."""

    def __init__(self, kcat: "Program") -> None:
        self._kcat = kcat
        self._began_ms = int(time.time() * 1000)

    def all(self) -> Iterator[tuple[str, Step]]:
        """Steps with their names."""
        yield "records with keys are produced", self._produce
        yield "they are consumed with offsets, keys and values", self._consume
        yield "consuming begins at an offset", self._from_offset
        yield "consuming begins so many records before the end", self._from_the_end
        yield "consuming begins and ends at times", self._by_time
        yield "offsets are told by time", self._query
        yield "metadata as text", self._metadata
        yield "metadata as JSON", self._metadata_json
        yield "records as JSON", self._records_json
        yield "headers", self._headers
        yield "values that are null", self._nulls
        for codec in CODECS:
            yield f"batches packed with {codec}", partial(self._packed, codec)
        yield "an idempotent producer", self._idempotent
        yield "a group reads everything, and goes on where it stopped", self._group
        yield "a group with a static member", self._static_member
        yield "a transaction that is committed", self._transaction
        yield "a transaction that is aborted is not read", self._aborted
        yield "a topic that does not exist is named", self._unknown

    def _read(self, topic: str, *how: str, form: str = "%p %o %k %s\n") -> list[str]:
        return self._kcat("-C", "-q", "-e", "-t", topic, "-f", form, *how).splitlines()

    def _write(self, topic: str, lines: str, *how: str) -> None:
        self._kcat("-P", "-t", topic, *how, given=lines)

    def _produce(self) -> None:
        self._write(TOPIC, LINES, "-p", "0", "-K", ":")
        self._write(TOPIC, LINES, "-K", ":")

    def _consume(self) -> None:
        here = self._read(TOPIC, "-p", "0", "-o", "beginning")
        _same(here[:100], [f"0 {number} key-{number} value {number}" for number in range(100)])
        _same(len(self._read(TOPIC, "-o", "beginning")), 200)

    def _from_offset(self) -> None:
        _same(self._read(TOPIC, "-p", "0", "-o", "42", "-c", "1"), ["0 42 key-42 value 42"])

    def _from_the_end(self) -> None:
        self._write("tail", LINES, "-p", "1", "-K", ":")
        _same(self._read("tail", "-p", "1", "-o", "-2", form="%o\n"), ["98", "99"])

    def _by_time(self) -> None:
        later = int(time.time() * 1000) + 3_600_000
        found = self._read(TOPIC, "-o", f"s@{self._began_ms}", "-o", f"e@{later}")
        _same(len(found), 200)
        _same(self._read(TOPIC, "-p", "0", "-o", f"s@{later}"), [])

    def _query(self) -> None:
        _same(self._kcat("-Q", "-t", f"{TOPIC}:0:{self._began_ms}").split(), [TOPIC, "[0]", "offset", "0"])
        end = self._kcat("-Q", "-t", "tail:1:-1").split()
        _same(end, ["tail", "[1]", "offset", "100"])

    def _metadata(self) -> None:
        said = self._kcat("-L")
        for wanted in ("3 brokers:", f'topic "{TOPIC}" with 4 partitions', "isrs:"):
            if wanted not in said:
                raise UnexpectedError(f"{wanted!r} is not in {said[:200]!r}")

    def _metadata_json(self) -> None:
        told: dict[str, Any] = json.loads(self._kcat("-L", "-J", "-t", TOPIC))
        _same(len(told["brokers"]), 3)
        (topic,) = told["topics"]
        _same([len(one["replicas"]) for one in topic["partitions"]], [3] * 4)

    def _records_json(self) -> None:
        told = self._kcat("-C", "-q", "-e", "-J", "-t", TOPIC, "-p", "0", "-o", "7", "-c", "1")
        record = json.loads(told)
        _same(
            [record[name] for name in ("topic", "partition", "offset", "key", "payload", "tstype")],
            [TOPIC, 0, 7, "key-7", "value 7", "create"],
        )

    def _headers(self) -> None:
        self._write("headers", "x\n", "-H", "a=1", "-H", "b=two")
        _same(self._read("headers", form="%h %s\n"), ["a=1,b=two x"])

    def _nulls(self) -> None:
        self._write("nulls", "a:\nb:full\n", "-K", ":", "-Z", "-p", "0")
        _same(self._read("nulls", "-Z", form="%k %S %s\n"), ["a -1 NULL", "b 4 full"])

    def _packed(self, codec: str) -> None:
        self._write(f"packed-{codec}", LINES * 50, "-z", codec, "-K", ":", "-p", "2")
        found = self._read(f"packed-{codec}", "-p", "2", form="%k:%s\n")
        _same(found, (LINES * 50).splitlines())

    def _idempotent(self) -> None:
        self._write("once", LINES, "-X", "enable.idempotence=true", "-K", ":", "-p", "3")
        _same(self._read("once", "-p", "3", form="%k:%s\n"), LINES.splitlines())

    def _grouped(self, group: str, *how: str) -> list[str]:
        settings = ("-X", "auto.offset.reset=earliest", *how)
        return self._kcat("-G", group, "-q", "-e", "-f", "%k\n", *settings, TOPIC).splitlines()

    def _group(self) -> None:
        _same(len(self._grouped("readers")), 200)
        self._write(TOPIC, "late:value\n", "-K", ":")
        _same(self._grouped("readers"), ["late"])

    def _static_member(self) -> None:
        _same(len(self._grouped("static", "-X", "group.instance.id=one")), 201)
        _same(self._grouped("static", "-X", "group.instance.id=one"), [])

    def _transaction(self) -> None:
        self._write("paid", LINES, "-X", "transactional.id=payer", "-K", ":")
        found = self._read("paid", "-X", "isolation.level=read_committed", form="%k:%s\n")
        _same(sorted(found), sorted(LINES.splitlines()))

    def _aborted(self) -> None:
        """kcat aborts its transaction when it is interrupted. That its records were there is looked at meanwhile."""
        self._write("given-up", "before\n", "-p", "0")
        command = self._kcat.command("-P", "-t", "given-up", "-p", "0", "-X", "transactional.id=given-up")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, env=self._kcat.environment, text=True
        ) as under_way:
            assert under_way.stdin is not None
            under_way.stdin.write("first\n" * 10_000)  # it reads ahead, 16 KiB at a time
            under_way.stdin.flush()
            deadline = time.monotonic() + STEP_S
            while len(self._uncommitted("given-up")) < 11 and time.monotonic() < deadline:
                time.sleep(0.1)
            under_way.send_signal(signal.SIGINT)
            time.sleep(0.5)  # it notes the signal, and looks at the note when its input ends
            under_way.stdin.close()
            under_way.wait(STEP_S)
        self._write("given-up", "second\n", "-X", "transactional.id=given-up", "-p", "0")
        found = self._uncommitted("given-up")
        _same(found, ["before", *["first"] * (len(found) - 2), "second"])
        if len(found) < 12:
            raise UnexpectedError("nothing was in the log of what was aborted")
        committed = ("-p", "0", "-X", "isolation.level=read_committed")
        _same(self._read("given-up", *committed, form="%s\n"), ["before", "second"])

    def _uncommitted(self, topic: str) -> list[str]:
        return self._read(topic, "-p", "0", "-X", "isolation.level=read_uncommitted", form="%s\n")

    def _unknown(self) -> None:
        try:
            self._kcat("-C", "-e", "-t", "nowhere", "-X", "allow.auto.create.topics=false")
        except UnexpectedError as error:
            if "Unknown topic or partition" not in str(error):
                raise
        else:
            raise UnexpectedError("a topic that does not exist was read")
