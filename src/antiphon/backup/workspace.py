"""Where the store of a table is made anew from a backup, to be read: a disk, an engine, and directories that go again."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from antiphon.log.disk import Disk, RealDisk
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.store import StoreEngine


class Workspace(NamedTuple):
    """See the module's text. `directory` makes a new one, whose path it gives, and removes it with all that is in it."""

    disk: Disk
    engine: StoreEngine
    directory: Callable[[], AbstractContextManager[str]]


def real_workspace() -> Workspace:
    """One among this machine's temporary files."""
    directory = partial(tempfile.TemporaryDirectory[str], prefix="antiphon-restore-")
    return Workspace(RealDisk(), RocksEngine(), directory)
