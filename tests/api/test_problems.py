"""The status that an error of a node is answered with, over the API and on pages."""

import pytest

from antiphon.errors import ERRORS, AntiphonError
from antiphon.http.api.problems import STATUS_OF, status_of


@pytest.mark.parametrize("error", [one for one in ERRORS.values() if one.retriable])
def test_what_may_go_well_when_it_is_asked_again_is_no_failure_of_the_node(
    error: type[AntiphonError],
) -> None:
    """tarantool 9406251: a page of a table answered 500 while its shard had no leader."""
    assert status_of(error("...")) in {409, 503}


@pytest.mark.parametrize(("code", "status"), [("not_leader", 503), ("unknown_topic", 404), ("internal", 500)])
def test_each_error_has_a_status(code: str, status: int) -> None:
    assert status_of(ERRORS[code]("...")) == status
    assert STATUS_OF.get(code, 500) == status
