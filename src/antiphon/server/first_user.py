"""The first user of a cluster: what a file says that was written before the cluster ran.

Whoever makes a cluster with authentication has to be let in once. So the file of `security.first_user` names a user and
holds its credentials, never its password, under a checksum (magic "ANTIPHFU", sealed). Each node that finds it asks the
coordinator for that user until it is there, which does nothing where there is any user already, and then removes the file.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from antiphon.errors import UNDECODABLE, AntiphonError, NewerFormatError
from antiphon.log.snapshot import seal, unframe
from antiphon.model.access import User
from antiphon.model.requests import AlterUser
from antiphon.security.passwords import credentials
from antiphon.security.private_files import write_private

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway

RETRY_S: Final = 1.0
MAGIC: Final = b"ANTIPHFU"
VERSION: Final = 1


def write_first_user(file: Path, name: str, password: str) -> None:
    """Write what `security.first_user` names, readable by this user only. Raises OSError, InvalidRequestError."""
    write_private(file, seal(MAGIC, VERSION, msgspec.msgpack.encode(User(name, credentials(password)))))


async def make_first_user(gateway: "Gateway", file: Path) -> None:
    """Have the cluster make the user that the file names, if it has none, and remove the file."""
    log = structlog.get_logger()
    try:
        user = _decode(_read(file), str(file))
    except FileNotFoundError:
        return
    except (OSError, NewerFormatError, *UNDECODABLE) as error:
        log.error("first_user_not_read", file=str(file), error=type(error).__name__)
        return
    if await make_user(gateway, user):
        _remove(file)


async def make_user(gateway: "Gateway", user: User) -> bool:
    """Have the cluster make this user, if it has none. Tries until somebody says yes or, with False, no."""
    log = structlog.get_logger()
    while True:
        try:
            await gateway.administer(AlterUser(user.name, user.credentials, if_none=True))
        except AntiphonError as error:
            if not error.retriable:
                log.error("first_user_not_made", user=user.name, error=error.message)
                return False
            await asyncio.sleep(RETRY_S)
        else:
            log.info("first_user_made", user=user.name)
            return True


def _decode(data: bytes, name: str) -> User:
    """What the file says. Those of earlier versions have no checksum. Raises one of UNDECODABLE, NewerFormatError."""
    if not data.startswith(MAGIC):
        return msgspec.msgpack.decode(data, type=User)
    return msgspec.msgpack.decode(unframe(MAGIC, VERSION, data, name) or b"", type=User)


def _read(file: Path) -> bytes:
    """A few hundred bytes, at a start."""
    return file.read_bytes()


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()
