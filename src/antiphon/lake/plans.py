"""What an epoch comes to, written down before it is done, where there are bad records.

An epoch without bad records is one commit of the lake table, and needs no more. With bad records there are two things to do:
the commit, and the dead letters. So the tasks' files are named in a plan first, beside the table; then both are done; then
the plan is removed. Whoever finds a plan completes it: the commit by its marks, the dead letters by the plan's id, under
which the sink writes them once.
"""

import hashlib
from typing import Any

import msgspec

from antiphon.errors import UNDECODABLE, InvalidRequestError, TargetConflictError
from antiphon.lake.records import OFFSET, PARTITION
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.staged import DataFile, read_frame
from antiphon.lake.targets.target import MarkStep, Target
from antiphon.spark.servers import options_of

BAD = "bad"


class Plan(msgspec.Struct, frozen=True):
    """Files to commit with marks, and files of bad records to send to the dead-letter topic.

    `merge`: the files hold changes that are to be merged. Nothing of a plan that was written may be missing.
    """

    files: tuple[DataFile, ...]
    bad_files: tuple[DataFile, ...]
    marks: dict[str, MarkStep]
    bad: int
    merge: bool
    id: str


class Plans:
    """The plan of one mirror: there is at most one."""

    def __init__(self, target: Target, source: str) -> None:
        self._target = target
        self.name = f"plans/{hashlib.sha256(source.encode()).hexdigest()[:16]}.json"

    @property
    def _meta(self) -> Folder:
        return self._target.meta  # may move when the table is made

    @property
    def bad_folder(self) -> Folder:
        """Where tasks write bad records."""
        return self._meta.child(BAD)

    def open(self) -> Plan | None:
        """The plan that was not completed."""
        data = self._meta.read(self.name)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=Plan)
        except UNDECODABLE as error:
            raise InvalidRequestError(f"{self._meta.url_of(self.name)} is damaged: {error}") from error
        if elsewhere := [
            file.name for file in found.bad_files if "/" in file.name
        ]:  # they are removed in the end
            raise InvalidRequestError(
                f"{self._meta.url_of(self.name)} is damaged: {elsewhere[0]!r} is no file of bad records"
            )
        return found

    def write(self, plan: Plan) -> None:
        """Raises TargetConflictError where there is a plan."""
        if not self._meta.create(self.name, msgspec.json.encode(plan)):
            raise TargetConflictError(
                f"{self._meta.url_of(self.name)}: another mirror of the same source is at work on this table"
            )

    def remove(self, plan: Plan) -> None:
        """It is done."""
        self._meta.delete(self.name)
        for file in plan.bad_files:
            self.bad_folder.delete(file.name)


def any_older(meta: Folder, before_ms: int) -> bool:
    """Has a mirror a plan open from before a time (ms since 1970)?"""
    return any(info.modified_ms < before_ms for info in meta.files("plans"))


def send_dead_letters(spark: Any, servers: str, topic: str, folder: Folder, plan: Plan) -> None:
    """Append the plan's bad records to a topic, once. One task writes them in the order of the log, so that a repetition
    sends the same batches and is recognised.
    """
    from antiphon.lake.records import BAD_SCHEMA

    urls = [folder.url_of(file.name) for file in plan.bad_files]
    frame = read_frame(spark, urls, BAD_SCHEMA, folder.options)
    (
        frame.coalesce(1)
        .sortWithinPartitions(PARTITION, OFFSET)
        .drop(PARTITION, OFFSET)
        .write.format("antiphon")
        .mode("append")
        .options(**options_of(servers), topic=topic, txnId=f"dead-letters/{plan.id}", protocol="direct")
        .save()
    )
