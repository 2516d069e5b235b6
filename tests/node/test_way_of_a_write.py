"""The way of an append and of a put, from the leader's socket to the acknowledgement: how many functions, files and returns.

A function of the node that is entered on the way counts once, and so does its file. A return is a time that the way comes
back to a file that it had left. One node with one replica carries out one request, after others of its kind; what the
simulated loop, disk and store do in the place of real ones is not counted. Run this file as a program for the figures.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

import antiphon
from antiphon.model.metadata import Kind
from antiphon.model.requests import AppendBatch, CreateTopic, Put, TableWrite
from antiphon.records.builder import build_batch
from antiphon.transport.connection import Connection
from tests.node.in_process import NATIVE_PORT, cluster_of, connected, run

SOURCE: Final = Path(antiphon.__file__).parent
LEFT_OUT: Final = (
    "simulation/",
    "log/simulated_disk.py",
    "log/simulated_tree.py",
    "client/",
    "invariants.py",
    "system.py",
    "errors.py",
)
BEFORE: Final = 5
"""Requests that come first, so that what is made once is there."""


class Way(NamedTuple):
    """What was entered, in order: file and name of each function, every time."""

    entered: list[tuple[str, str]]

    @property
    def functions(self) -> list[tuple[str, str]]:
        """Each function once."""
        return list(dict.fromkeys(self.entered))

    @property
    def files(self) -> list[str]:
        """Each file once."""
        return list(dict.fromkeys(file for file, _ in self.entered))

    def inside(self, folder: str) -> "Way":
        """The part of it in the files of a folder."""
        return Way([one for one in self.entered if one[0].startswith(folder)])

    @property
    def returns(self) -> int:
        """Times that a file was entered again from another one."""
        visits = [
            file for at, (file, _) in enumerate(self.entered) if at == 0 or self.entered[at - 1][0] != file
        ]
        return len(visits) - len(self.files)


class Walk:
    """Notes what is entered from the moment at which a request is read until its answer is written."""

    def __init__(self) -> None:
        self._way: list[tuple[str, str]] | None = None
        self.way = Way([])

    def look(self, frame: FrameType, event: str, _argument: Any) -> None:
        """For `sys.setprofile`."""
        code = frame.f_code
        if not code.co_filename.startswith(str(SOURCE)):
            return
        file = str(Path(code.co_filename).relative_to(SOURCE))
        if event == "call" and self._way is None and code is Connection.data_received.__code__:
            self._way = []
        if self._way is None:
            return
        if event == "call" and not file.startswith(LEFT_OUT) and not _is_piece(code.co_name):
            self._way.append((file, code.co_qualname))
        elif event == "return" and code is Connection._flush.__code__:
            self.way, self._way = Way(self._way), None


def _is_piece(name: str) -> bool:
    """Is it no function of its own, but a piece of one, or a constructor that the class statement made?"""
    return name.startswith("<") or name == "__new__" or name == "__init__"


def walked(make: Callable[[int, int], tuple[Any, list[bytes]]], kind: Kind) -> Way:
    """The way of one request of a client, `make(shard, number)`: its message and payload."""
    walk = Walk()

    async def test() -> None:
        async with cluster_of(1) as nodes:
            node = nodes.nodes[0]
            topic = await node.gateway.create_topic(CreateTopic("t", kind=kind, replicas=1))
            shard_id = topic.shards[0].shard_id
            await nodes.leader(shard_id)
            async with connected(f"node-0:{NATIVE_PORT}") as client:
                for number in range(BEFORE):
                    await client.request(*make(shard_id, number))
                sys.setprofile(walk.look)
                try:
                    await client.request(*make(shard_id, BEFORE))
                finally:
                    sys.setprofile(None)

    run(test())
    return walk.way


def an_append(shard_id: int, number: int) -> tuple[Any, list[bytes]]:
    batch = build_batch([(None, b"x", [], 1)], producer_id=7, producer_epoch=0, base_sequence=number)
    return AppendBatch(shard_id), [bytes(batch)]


def a_put(shard_id: int, number: int) -> tuple[Any, list[bytes]]:
    return TableWrite(
        shard_id, (Put(b"k", b"%d" % number),), producer_id=7, producer_epoch=0, sequence=number
    ), []


class Length(NamedTuple):
    """How long a way is: functions, files, returns."""

    functions: int
    files: int
    returns: int


# What docs/partition.md says: of the shard's part, `partition/`, and of the whole node. Nothing is to make the way
# longer, in any of these.
APPEND: Final = (Length(16, 7, 9), Length(81, 35, 39))
PUT: Final = (Length(20, 8, 10), Length(92, 40, 44))


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [(an_append, Kind.TOPIC, APPEND), (a_put, Kind.TABLE, PUT)],
    ids=["append", "put"],
)
def test_a_write_enters_few_functions(
    make: Callable[[int, int], tuple[Any, list[bytes]]], kind: Kind, told: tuple[Length, Length]
) -> None:
    way = walked(make, kind)
    here = way.inside("partition/")
    for one, where, most in ((here, "partition/", told[0]), (way, "the node", told[1])):
        found = Length(len(one.functions), len(one.files), one.returns)
        entered = "\n".join(f"{file:40} {name}" for file, name in one.entered)
        for number, most_of_it, what in zip(found, most, Length._fields, strict=True):
            assert number <= most_of_it, f"the way through {where} has more {what} than before:\n{entered}"
    assert "PartitionClients.committed" in {name for _, name in here.functions}, "it was answered by a commit"


if __name__ == "__main__":
    for make, kind in ((an_append, Kind.TOPIC), (a_put, Kind.TABLE)):
        way = walked(make, kind)
        for one, where in ((way, "the node"), (way.inside("partition/"), "partition/")):
            print(
                make.__name__,
                where,
                len(one.functions),
                "functions,",
                len(one.files),
                "files,",
                one.returns,
                "returns",
            )
