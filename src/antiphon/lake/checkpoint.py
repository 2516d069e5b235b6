"""What an epoch covers, from the query's checkpoint: Spark writes an epoch's offsets there before it runs it."""

import json
from pathlib import Path
from typing import Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.spark.offsets import Positions, to_positions

_HEAD_LINES: Final = 2  # version, then the epoch's metadata; a line a source follows


def epoch_end(checkpoint: str, epoch: int) -> Positions | None:
    """Exclusive ends of an epoch of a query with one source; None where the checkpoint does not know the epoch."""
    text = _read(checkpoint, f"offsets/{epoch}")
    if text is None:
        return None
    try:
        (line,) = text.splitlines()[_HEAD_LINES:]
        return to_positions(json.loads(line))
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequestError(
            f"{checkpoint}/offsets/{epoch} is not of a query with one source of antiphon: {text[:200]!r}"
        ) from error


def _read(checkpoint: str, name: str) -> str | None:
    from pyarrow import fs

    try:
        files: Any
        if "://" in checkpoint:
            files, root = fs.FileSystem.from_uri(checkpoint)
        else:
            files, root = fs.LocalFileSystem(), str(Path(checkpoint.removeprefix("file:")).absolute())
        with files.open_input_stream(f"{root}/{name}") as stream:
            found: str = stream.read().decode()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"the checkpoint {checkpoint} cannot be read here: {error}") from error
    return found
