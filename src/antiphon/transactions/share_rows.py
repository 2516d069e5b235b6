"""Rows of share-partitions, and the settings of share groups, in the group's shard of `__groups`.

`share/<group>/<topic id, hexadecimal>/<partition>` is the state of a share-partition (`ShareRow`), which its partition's
leader writes by way of the group's coordinator. `groupsettings/<group>` is what operators set of one group.
"""

from typing import Final

import msgspec

from antiphon.coordination.share_terms import ShareRow
from antiphon.errors import UNDECODABLE
from antiphon.transactions.group_offsets import escaped

SHARE_GROUP: Final = "sharegroup"  # what keys of members' rows begin with
_ROW: Final = msgspec.msgpack.Decoder(ShareRow)
_SETTINGS: Final = msgspec.msgpack.Decoder(dict[str, str])
_ENCODER: Final = msgspec.msgpack.Encoder()


def state_key(group: str, topic_id: bytes, partition: int) -> bytes:
    """The key of a share-partition's row."""
    return f"share/{escaped(group)}/{topic_id.hex()}/{partition}".encode()


def state_rows(group: str, topic_id: bytes | None = None) -> tuple[bytes, bytes]:
    """From the first possible key of a share-partition of a group (and a topic) to the one after the last."""
    prefix = f"share/{escaped(group)}" if topic_id is None else f"share/{escaped(group)}/{topic_id.hex()}"
    return f"{prefix}/".encode(), f"{prefix}0".encode()  # "0" is the byte after "/"


def place_of_key(key: bytes) -> tuple[bytes, int]:
    """Topic id and partition of a row; raises ValueError."""
    _, _, topic_id, partition = key.decode().split("/")
    return bytes.fromhex(topic_id), int(partition)


def group_of_key(key: bytes) -> str:
    """The group of a share-partition's row; raises ValueError."""
    _, group, _, _ = key.decode().split("/")
    return _plain(group)


def group_key(group: str) -> bytes:
    """The key of a share group's own row."""
    return f"{SHARE_GROUP}/{escaped(group)}/group/".encode()


def settings_key(group: str) -> bytes:
    """The key of a group's settings."""
    return f"groupsettings/{escaped(group)}".encode()


def settings_rows() -> tuple[bytes, bytes]:
    """From the first possible key of a group's settings to the one after the last."""
    return b"groupsettings/", b"groupsettings0"  # "0" is the byte after "/"


def group_of_settings(key: bytes) -> str:
    """The group of a row of settings."""
    return _plain(key.decode().partition("/")[2])


def _plain(group: str) -> str:
    return group.replace("%2F", "/").replace("%25", "%")


def settings_row(group: str) -> tuple[bytes, bytes]:
    """That key alone, as a range."""
    key = settings_key(group)
    return key, key + b"\x00"


def encoded(row: ShareRow | dict[str, str]) -> bytes:
    """A row's value."""
    return _ENCODER.encode(row)


def state_of(value: bytes) -> ShareRow:
    """What a share-partition's row says; raises ValueError."""
    try:
        return _ROW.decode(value)
    except UNDECODABLE as error:
        raise ValueError(f"not a share-partition: {error}") from error


def settings_of(value: bytes | None) -> dict[str, str]:
    """What a group's row of settings says; nothing for a bad one."""
    try:
        return _SETTINGS.decode(value) if value else {}
    except UNDECODABLE:
        return {}
