"""`antiphon backup`, `antiphon restore`: the whole cluster at one cut to a directory or an object store, and back."""

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer
from typer.core import TyperGroup

from antiphon.cli.archive_commands import StorageOption, storage_options
from antiphon.cli.declare import COMMON, CommonOptions, JsonOption, command, group, server_addresses
from antiphon.cli.output import EXIT_FAILED, note, print_json, print_table, say, usage
from antiphon.cli.times import duration_ms
from antiphon.client.local_folder import (
    DEFAULT_DIR,
    FIRST_USER,
    FORMAT,
    PASSWORD_FILE,
    LocalClusterFile,
    LocalNode,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from antiphon.backup.manifest import Backup
    from antiphon.backup.place import Place
    from antiphon.client.aio import AsyncClient

T = TypeVar("T")
CREATE: Final = "create"
QUIET_S: Final = 1.0  # what takes longer says what it does
LATEST: Final = "latest"
TIMEOUT_S: Final = 60.0

PlaceArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="Directory: a path, or a URI of any fsspec file system.")
]
NameArgument = Annotated[
    str, typer.Argument(metavar="[NAME]", help="Name of a backup; the newest by default.")
]
NodesOption = Annotated[int, typer.Option(help="How many nodes the new cluster has.")]
SecureOption = Annotated[
    bool, typer.Option("--secure", help="The new cluster is to be secure, as with `antiphon up --secure`.")
]
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", help="Leave this topic or table out; may be repeated.")
]


class _CreateByDefault(TyperGroup):
    """`antiphon backup --to URL ...` means `antiphon backup create --to URL ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] != "--help":
            args = [CREATE, *args]
        return super().parse_args(ctx, args)


group(
    "backup",
    "Back up the whole cluster at one cut, and restore it, or one topic or table of it.",
    "Example: antiphon backup --to s3://bucket/backups",
    cls=_CreateByDefault,
    subcommand_metavar="--to URL | COMMAND ...",
)


@contextmanager
def _progress_lines(*, as_json: bool) -> "Iterator[Callable[[str], None]]":
    """Tells what is done on stderr, once it takes longer than a moment; a program that reads JSON is told nothing."""
    began_s, told = time.monotonic(), ""

    def tell(text: str) -> None:
        nonlocal told
        if not as_json and text != told and time.monotonic() - began_s > QUIET_S:
            told = text
            note(text)

    yield tell


def _place(uri: str, storage: list[str] | None) -> "Place":
    from antiphon.backup.place import Place

    return Place(uri, storage_options(storage))


def _connected(servers: str | None, directory: Path, work: "Callable[[AsyncClient], Awaitable[T]]") -> T:
    """Do something with a client of the cluster."""
    import asyncio

    import antiphon.aio

    found = server_addresses(servers, directory)

    async def run() -> T:
        async with antiphon.aio.connect(found, timeout_s=TIMEOUT_S) as client:
            return await work(client)

    return asyncio.run(run())


@command("backup create", "antiphon backup create /mnt/backups --json")
def create(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLACE]",
            help="Directory: a path, or a URI of any fsspec file system.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="The same as PLACE.", show_default=False),
    ] = None,
    without: WithoutOption = None,
    lease: Annotated[
        int,
        typer.Option(
            help="Milliseconds that writes may wait at most while the cut is made, in each try.",
            min=10,
            max=2000,
        ),
    ] = 1000,
    tries: Annotated[int, typer.Option(help="How often to try to make the cut.", min=1, max=100)] = 10,
    storage: StorageOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Back up the cluster, while clients write. What an earlier backup there has is not written again."""
    from antiphon.backup.create import create_backup

    if (place is None) == (to is None):
        usage("name one place for the backup: `antiphon backup --to URL`")
    where = _place(place or to or "", storage)
    with _progress_lines(as_json=common.as_json) as tell:
        made = _connected(
            common.servers,
            common.directory,
            lambda client: create_backup(
                client, where, without=without or (), lease_ms=lease, tries=tries, tell=tell
            ),
        )
    others = f"; the others are of {made.base} and before" if made.base else ""
    before = f" (before that for up to {made.cut.tried_ms:.0f} ms a try)" if made.cut.tries > 1 else ""
    text = (
        f"Backup {made.name}: {len(made.topics)} topics and tables, {made.size_bytes} bytes\n"
        f"  wrote {made.written_files} files, {made.written_bytes} bytes{others}\n"
        f"  the cut: writes waited for up to {made.cut.held_ms:.1f} ms, in try {made.cut.tries}{before}"
    )
    say(text, _summary(made), as_json=common.as_json)


def _summary(backup: "Backup") -> dict[str, Any]:
    return {
        "name": backup.name,
        "cluster_id": backup.cluster_id,
        "created_ms": backup.created_ms,
        "took_ms": backup.took_ms,
        "version": backup.version,
        "cut": msgspec.to_builtins(backup.cut),
        "topics": len(backup.topics),
        "without": list(backup.without),
        "size_bytes": backup.size_bytes,
        "written_files": backup.written_files,
        "written_bytes": backup.written_bytes,
        "base": backup.base or None,
    }


@command("backup list", "antiphon backup list /mnt/backups")
def list_backups(place: PlaceArgument, storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """The backups in a place, the oldest first."""
    from antiphon.backup.manifest import load, names_in
    from antiphon.errors import AntiphonError

    where = _place(place, storage)
    rows: list[tuple[object, ...]] = []
    found: list[dict[str, Any]] = []
    for name in names_in(where):
        try:
            backup = load(where, name)
        except AntiphonError as error:
            rows.append((name, "damaged", None, None, None, error.message))
            found.append({"name": name, "damaged": error.message})
        else:
            rows.append(
                (
                    name,
                    backup.cluster_id[:8],
                    len(backup.topics),
                    backup.size_bytes,
                    backup.written_bytes,
                    None,
                )
            )
            found.append(_summary(backup))
    if as_json:
        print_json(found)
    elif not rows:
        typer.echo(f"there is no backup in {place}: `antiphon backup create {place}` makes one", err=True)
    else:
        print_table(("NAME", "CLUSTER", "TOPICS", "BYTES", "WRITTEN", "PROBLEM"), rows, as_json=False)


@command("backup show", "antiphon backup show /mnt/backups")
def show(
    place: PlaceArgument,
    name: NameArgument = LATEST,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is in a backup: topics and tables, with the offsets of each shard."""
    from antiphon.backup.manifest import load

    backup = load(_place(place, storage), name)
    rows = [
        (
            topic.name,
            topic.kind,
            shard.index,
            shard.start,
            shard.end,
            len(shard.pieces),
            "yes" if shard.state else "no",
            shard.size_bytes,
        )
        for topic in backup.topics
        for shard in topic.shards
    ]
    headings = ("TOPIC", "KIND", "SHARD", "FROM", "TO", "PIECES", "STATE", "BYTES")
    told = {**_summary(backup), "topics": msgspec.to_builtins(backup.topics)}
    print_table(headings, rows, told, as_json=as_json)


@command("backup verify", "antiphon backup verify /mnt/backups")
def verify(
    place: PlaceArgument,
    name: NameArgument = LATEST,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read all of a backup back, and compare it with its checksums. Exit code 1: something is wrong."""
    from antiphon.backup.manifest import load
    from antiphon.backup.verify import verify_backup

    where = _place(place, storage)
    with _progress_lines(as_json=as_json) as tell:
        backup, read = load(where, name), 0

        def look(more: int) -> None:
            nonlocal read
            read += more
            tell(f"read {100 * read // max(1, backup.size_bytes)} %")

        found = verify_backup(where, backup, look)
    if as_json:
        print_json(
            {"name": backup.name, **found._asdict(), "problems": [one._asdict() for one in found.problems]}
        )
    elif found.problems:
        print_table(("SHARD", "FILE", "PROBLEM"), found.problems, as_json=False)
    else:
        typer.echo(
            f"Backup {backup.name} is whole: {found.files} files, {found.batches} batches, {found.size_bytes} bytes"
        )
    if found.problems:
        raise typer.Exit(EXIT_FAILED)


@command("backup prune", "antiphon backup prune /mnt/backups --keep 7 --older-than 30d")
def prune(
    place: PlaceArgument,
    keep: Annotated[int, typer.Option("--keep", help="Keep so many of the newest of each cluster.", min=1)],
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Only backups older than this: 30d, 36h.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say which backups would go, and change nothing.")
    ] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove old backups, and the files that no other backup needs. What an earlier prune left undone is done as well."""
    from antiphon import system
    from antiphon.backup.prune import old_ones
    from antiphon.backup.prune import prune as prune_backups

    where = _place(place, storage)
    before_ms = None if older_than is None else system.wall_ms() - duration_ms(older_than, "--older-than")
    going = old_ones(where, keep, before_ms)
    if plan:
        names = [backup.name for backup in going]
        text = "\n".join(f"would remove {name}" for name in names) or "nothing would be removed"
        say(text, {"plan": True, "backups": names}, as_json=as_json)
        return
    with _progress_lines(as_json=as_json) as tell:
        done = prune_backups(where, going, tell)
    text = "".join(f"removed {name}\n" for name in done.backups)
    text += f"Removed {done.files} files, {done.size_bytes} bytes; {len(done.kept)} backups are left"
    say(text, {"plan": False, **done._asdict()}, as_json=as_json)


@command(
    "backup restore",
    "antiphon backup restore /mnt/backups --dir /srv/antiphon --nodes 3, then antiphon up --dir /srv/antiphon",
)
def restore(
    place: PlaceArgument,
    name: NameArgument = LATEST,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="A new directory, for `antiphon up --dir`.", show_default=False),
    ] = None,
    nodes: NodesOption = 3,
    secure: SecureOption = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore the whole cluster into new directories; start it with `antiphon up --dir DIR`.

    The new cluster has another id. Offsets, groups, versions, users and settings are as of the cut. With --secure the user
    `admin` has a new password, in DIR/admin.password.
    """
    from antiphon.backup.manifest import load
    from antiphon.backup.restore_cluster import restore_cluster
    from antiphon.model.access import User
    from antiphon.security.passwords import credentials, new_password
    from antiphon.security.private_files import write_private
    from antiphon.tools.cluster_files import KEY_FILE, save_cluster

    if directory is None:
        usage(
            "name a new directory with --dir; to restore one topic see `antiphon backup restore-topic --help`"
        )
    directory = directory.absolute()
    where = _place(place, storage)
    with _progress_lines(as_json=as_json) as tell:
        backup = load(where, name)
        password = new_password() if secure else ""
        user = User(FIRST_USER, credentials(password)) if secure else None
        done = restore_cluster(where, backup, directory, nodes, user=user, tell=tell)
    if secure:
        write_private(directory / PASSWORD_FILE, f"{password}\n".encode())
    members = [LocalNode(id=number, dir=str(folder)) for number, folder in enumerate(done.directories)]
    file = LocalClusterFile(
        FORMAT, done.cluster_id, "127.0.0.1", "oxia", members, founded=False, peer_key=KEY_FILE, secure=secure
    )
    save_cluster(directory, file)
    text = (
        f"Restored {backup.name}: {done.topics} topics and tables, {done.shards} shards, in {directory}\n\n"
        f"Start it:  antiphon up --dir {directory}"
    )
    told = {"name": backup.name, "dir": str(directory), "nodes": nodes, **done._asdict()}
    say(text, told, as_json=as_json)


@command(
    "restore",
    "antiphon restore --from s3://bucket/backups --dir /srv/antiphon, then antiphon up --dir /srv/antiphon",
)
def restore_from(
    place: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="Directory: a path, or a URI of any fsspec file system."),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of a backup; the newest by default.")
    ] = LATEST,
    directory: Annotated[
        Path, typer.Option("--dir", help="A new directory, for `antiphon up --dir`.")
    ] = DEFAULT_DIR,
    nodes: NodesOption = 3,
    secure: SecureOption = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore the whole cluster of a backup into a new directory; the same as `antiphon backup restore`.

    `antiphon backup restore-topic` brings one topic or table back into a cluster that runs.
    """
    restore(place, name, directory, nodes, secure=secure, storage=storage, as_json=as_json)


@command("backup restore-topic", "antiphon backup restore-topic /mnt/backups prices --as prices-old")
def restore_one(
    place: PlaceArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic or table of the backup.")],
    name: NameArgument = LATEST,
    to: Annotated[
        str, typer.Option("--as", help="The new topic's or table's name; by default that of the old.")
    ] = "",
    storage: StorageOption = None,
    common: CommonOptions = COMMON,
) -> None:
    """Restore one topic or table into the running cluster, as a new one.

    A table's rows get new versions. Records keep their offsets where nothing before them is left out.
    """
    from antiphon.backup.manifest import load
    from antiphon.backup.restore_topic import restore_topic

    where = _place(place, storage)
    with _progress_lines(as_json=common.as_json) as tell:
        backup = load(where, name)
        done = _connected(
            common.servers,
            common.directory,
            lambda client: restore_topic(client, where, backup, topic, to, tell),
        )
    shards = [shard._asdict() for shard in done.shards]
    told = {"backup": backup.name, "name": done.name, "kind": str(done.kind.value), "shards": shards}
    rows = [
        (shard.shard, shard.records, shard.left_out, "yes" if shard.kept_offsets else "no")
        for shard in done.shards
    ]
    print_table(("SHARD", "RESTORED", "LEFT OUT", "SAME OFFSETS"), rows, told, as_json=common.as_json)
