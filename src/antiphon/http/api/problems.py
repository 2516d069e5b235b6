"""Refusals and failures as JSON: problem details (RFC 9457)."""

from http import HTTPStatus
from typing import Final

import msgspec

from antiphon.errors import AntiphonError
from antiphon.http.api.answers import Problem

PROBLEM: Final = "application/problem+json"
ABOUT: Final = "/api#problems"
STATUS_OF: Final = {
    "access_denied": 403,
    "batch_too_large": 400,
    "data_loss": 410,
    "invalid_request": 400,
    "key_locked": 503,
    "key_not_found": 404,
    "limit_reached": 409,
    "not_leader": 503,
    "not_ready": 503,
    "offset_out_of_range": 416,
    "overloaded": 503,
    "timed_out": 503,
    "topic_exists": 409,
    "unauthenticated": 401,
    "unavailable": 503,
    "unknown_shard": 404,
    "unknown_topic": 404,
    "wrong_kind": 400,
    "wrong_shard": 503,
}
"""By the code of an error."""


class AskedWronglyError(Exception):
    """A request that is refused before anybody is asked."""

    def __init__(
        self,
        detail: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        parameter: str | None = None,
        asked: str | None = None,
        do: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = problem(detail, status, code, parameter=parameter, asked=asked, do=do)


def problem(
    detail: str,
    status: int,
    code: str,
    *,
    parameter: str | None = None,
    asked: str | None = None,
    do: str | None = None,
) -> Problem:
    """The details of one."""
    return Problem(
        type=ABOUT,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        parameter=parameter,
        asked=None if asked is None else asked[:200],
        do=do,
    )


def status_of(error: AntiphonError) -> int:
    """The status that an error is answered with: what may go well when it is asked again is 503, of others 500."""
    return STATUS_OF.get(error.code, 503 if error.retriable else 500)


def of_error(error: AntiphonError) -> Problem:
    """What an error comes to."""
    found = problem(error.message, status_of(error), error.code)
    facts = {
        name: value
        for name, value in error.details.items()
        if value is None or isinstance(value, str | int | bool)
    }
    return msgspec.structs.replace(found, facts=facts)


def encoded(found: Problem) -> bytes:
    """As it is sent."""
    return msgspec.json.encode(found) + b"\n"


def as_problem(status: int, text: bytes) -> tuple[int, str, bytes]:
    """What the listener says in plain text, for those who read JSON."""
    codes = {401: "unauthenticated", 403: "access_denied", 429: "throttled", 503: "not_ready"}
    detail = text.decode("utf-8", "replace").strip()
    return status, PROBLEM, encoded(problem(detail, status, codes.get(status, "invalid_request")))
