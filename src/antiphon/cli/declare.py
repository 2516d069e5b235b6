"""How commands are declared: path, example and the options that most commands have, each written once."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

import typer

import antiphon
from antiphon.cli.output import note_asked, reports_errors
from antiphon.client.local_folder import DEFAULT_DIR, LocalClusterFile, local_servers
from antiphon.errors import UnreachableError
from antiphon.model.requests import AccessReply, AdminRequest
from antiphon.tools.cluster_files import is_stopped, running_pid
from antiphon.tools.secure_folder import use_settings

Function = Callable[..., None]

ServersOption = Annotated[
    str | None,
    typer.Option(
        "--servers",
        envvar="ANTIPHON_SERVERS",
        help="Native addresses of nodes, host:port[,host:port...]; without them the cluster in --dir.",
    ),
]
DirOption = Annotated[
    Path, typer.Option("--dir", help="Directory of the local cluster, as given to `antiphon up`.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen where other machines reach it also without TLS and authentication: everybody there may read and write "
        "everything.",
    ),
]


def server_addresses(servers: str | None, directory: Path, *, may_be_stopped: bool = False) -> str:
    """Addresses to ask: --servers, else the local cluster in `directory`; if that is secure, its clients know how.

    Raises UnreachableError where `antiphon down` has stopped that cluster, unless it may be: nobody waits for it then.
    """
    directory = directory.absolute()
    found, cluster = local_servers(servers or "", directory)
    note_asked(found, [] if servers or cluster is None else [node.dir for node in cluster.nodes])
    if cluster is not None:
        use_settings(directory, cluster)
        if not (servers or may_be_stopped) and is_stopped(directory) and not _runs(cluster):
            raise UnreachableError(f"the cluster in {directory} is stopped")
    return found


def _runs(cluster: LocalClusterFile) -> bool:
    return any(running_pid(Path(node.dir)) is not None for node in cluster.nodes)


class CommonOptions(NamedTuple):
    """Which cluster a command asks, and how it prints: an option for each field."""

    servers: ServersOption = None
    directory: DirOption = DEFAULT_DIR
    as_json: JsonOption = False

    def addresses(self, *, may_be_stopped: bool = False) -> str:
        """Those of the cluster; as `server_addresses`."""
        return server_addresses(self.servers, self.directory, may_be_stopped=may_be_stopped)

    def connect(self) -> "antiphon.Client":
        """A client of the cluster, to be closed."""
        return antiphon.connect(self.addresses())

    def administer(self, request: AdminRequest) -> None:
        """Have the cluster do what an administrator may ask of it."""
        with self.connect() as db:
            db.run(db.aio.administer(request))

    def access(self) -> AccessReply:
        """Users, access control lists and quotas."""
        with self.connect() as db:
            return db.run(db.aio.access())


COMMON: Final = CommonOptions()


class _Command(NamedTuple):
    path: str
    example: str
    function: Function


_commands: dict[str, list[_Command]] = {}  # by the module that declares them
_groups: dict[str, typer.Typer] = {}


def group(name: str, about: str, epilog: str, **options: Any) -> typer.Typer:
    """Declare a group of commands; `options` are typer's."""
    _groups[name] = typer.Typer(
        no_args_is_help=True, help=about, epilog=epilog, rich_markup_mode=None, **options
    )
    return _groups[name]


def command(path: str, example: str) -> Callable[[Function], Function]:
    """Declare a command: its words behind `antiphon`, and an example of its use.

    Its errors become exit codes. A parameter `common` stands for the options of `CommonOptions`.
    """

    def declare(function: Function) -> Function:
        made = reports_errors(_with_common_options(function), path)
        _commands.setdefault(function.__module__, []).append(_Command(path, example, made))
        return made

    return declare


def _with_common_options(function: Function) -> Function:
    if "common" not in inspect.signature(function).parameters:
        return function
    hints = get_type_hints(CommonOptions, include_extras=True)
    options = {name: (hint, getattr(COMMON, name)) for name, hint in hints.items()}
    return with_options_for(function, "common", options, CommonOptions)


def with_options_for(
    function: Function, name: str, options: Mapping[str, tuple[Any, Any]], made: Callable[..., Any]
) -> Function:
    """In the place of its parameter `name` the command gets options: a type and a default for each name.

    `made` makes what the parameter is to be of their values, in that order.
    """
    signature = inspect.signature(function, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        parameters += (
            [one]
            if one.name != name
            else [
                one.replace(name=option, annotation=hint, default=default)
                for option, (hint, default) in options.items()
            ]
        )

    @wraps(function)
    def wrapped(**given: Any) -> None:
        value = made(*(given.pop(option) for option in options))
        function(**given, **{name: value})

    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped


def mount(app: typer.Typer, modules: Iterable[str]) -> None:
    """Add the commands of these modules of `antiphon.cli`, in this order, which is that of the help."""
    mounted: set[str] = set()
    for module in modules:
        for path, example, function in _commands.get(import_module(f"antiphon.cli.{module}").__name__, ()):
            above, _, name = path.rpartition(" ")
            if above and above not in mounted:
                mounted.add(above)
                app.add_typer(_groups[above], name=above)
            into = _groups[above] if above else app
            into.command(name, epilog=f"Example: {example}")(function)
