"""`--on-corrupt` and `--dead-letters`: what commands that read do with batches that cannot be read."""

from typing import Annotated

import typer

from antiphon.cli.output import usage
from antiphon.errors import InvalidRequestError
from antiphon.records.unreadable import Choice, checked, chosen

OnCorruptOption = Annotated[
    str, typer.Option("--on-corrupt", help="A batch that cannot be read: fail, skip or deadletter.")
]
DeadLettersOption = Annotated[
    str | None, typer.Option("--dead-letters", help="Topic that deadletter appends such batches to.")
]


def corrupt_choice(on_corrupt: str, dead_letters: str | None, topic: str) -> Choice:
    """What the two options say, for a command that reads `topic`; another value is a wrong use."""
    try:
        return checked(chosen(on_corrupt, dead_letters, ("--on-corrupt", "--dead-letters")), topic)
    except InvalidRequestError as error:
        usage(error.message)
