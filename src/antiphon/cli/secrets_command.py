"""`antiphon secrets`: authorities, certificates, keys and a first user for nodes that run on other machines or in pods.

The files are those of `antiphon up --secure` (`secure_folder`), under the same names.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from antiphon.cli.declare import JsonOption, command
from antiphon.cli.output import say, usage
from antiphon.client.local_folder import FIRST_USER, PASSWORD_FILE
from antiphon.security.private_files import private_folder, write_private
from antiphon.tools.secure_folder import (
    CLIENTS,
    FIRST_USER_FILE,
    LOOPBACK_NAMES,
    PEERS,
    certify,
    make_authority,
    missing_authorities,
)

PEER_KEY_FILE: Final = "peer.key"


@command("secrets", "antiphon secrets --out secrets --name db-1.example --name 10.0.0.1")
def secrets(
    out: Annotated[Path, typer.Option("--out", help="Where they go; what is there already is kept.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name or address by which clients reach the nodes, for their certificate; may be repeated. "
            "'*.antiphon.example' stands for all names below it."
        ),
    ] = None,
    folder: Annotated[
        str, typer.Option(help="Folder in it for the files of a node, or of several.")
    ] = "node",
    as_json: JsonOption = False,
) -> None:
    """Make what nodes elsewhere need for TLS and logins: two authorities, certificates, the nodes' key, a first user.

    Copy the folder of a node to it, and keep the authorities' .key files elsewhere. Again for each further folder.
    """
    if not name:
        usage("give at least one --name: by what host name or address do clients reach the node?")
    if Path(folder).name != folder or folder in {"", ".", ".."}:
        usage(f"--folder takes a name without a path, not {folder!r}")
    private_folder(out)
    place = out / folder
    private_folder(place)
    for file, purpose in missing_authorities(out).items():
        make_authority(file, f"antiphon {purpose}")
    for tls in (CLIENTS, PEERS):
        certify(out, place, tls, f"antiphon {folder}", (*name, *LOOPBACK_NAMES))
    _shared(out, place)
    files = sorted(file.name for file in place.iterdir())
    shown = {"dir": str(out), "folder": str(place), "files": files, "user": FIRST_USER}
    text = (
        f"{place} has what a node needs: {', '.join(files)}.\nClients trust {out / CLIENTS.authority} and log in as "
        f"{FIRST_USER} with the password in {out / PASSWORD_FILE}"
    )
    say(text, shown, as_json=as_json)


def _shared(out: Path, place: Path) -> None:
    """The nodes' key, and the first user: the same for all nodes."""
    from antiphon.security.passwords import new_password
    from antiphon.server.first_user import write_first_user

    key, password = out / PEER_KEY_FILE, out / PASSWORD_FILE
    if not key.exists():
        write_private(key, f"{new_password()}{new_password()}\n".encode())
    if not password.exists():
        write_private(password, f"{new_password()}\n".encode())
    write_private(place / PEER_KEY_FILE, key.read_bytes())
    write_first_user(place / FIRST_USER_FILE, FIRST_USER, password.read_text().rstrip("\n"))
