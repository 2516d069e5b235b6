"""Addresses of a cluster that asks who is there, for jobs and mirrors: one value for TLS, certificate, user and password."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from antiphon.client.access import Access, access_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTINGS: Final = {
    "tls": "tls",
    "user": "user",
    "password": "password",
    "token": "token",
    "tls_certificate": "tlsCertificate",
    "tls_key": "tlsKey",
}
"""What it takes to get in, by its name in Python and in pipeline files -> the option of the data source."""


class Servers(str):
    """Native addresses as text, with what it takes to get in. It prints as the addresses alone."""

    access_options: dict[str, str]

    def __new__(cls, addresses: str = "", access_options: dict[str, str] | None = None) -> Self:
        """See `servers`."""
        made = super().__new__(cls, addresses)
        made.access_options = dict(access_options or {})
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[str, dict[str, str]]]:
        return type(self), (str(self), self.access_options)


def servers(
    addresses: str,
    *,
    tls: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tls_certificate: str = "",
    tls_key: str = "",
) -> Servers:
    """What jobs, mirrors and `upserts` take for `servers`, for a cluster with TLS or authentication.

        secure = antiphon.spark.servers("node-0:7400", tls="authority.pem", user="alice", password=password)
        jobs.audit(spark, secure)

    Args:
        addresses: native addresses, `host:port[,host:port...]`.
        tls: `on` to trust the system's authorities, a PEM file of authorities, or `off`; by default ANTIPHON_TLS says it.
            The file is read in the driver; executors need none.
        user: who logs in; by default ANTIPHON_USER, and so on.
        password: of the user.
        token: a bearer token, in place of those.
        tls_certificate: a PEM file with the certificate to show where nodes want one. Read in the driver, as its key is.
        tls_key: a PEM file with its key; by default it is in the same file.
    """
    given = zip(SETTINGS.values(), (tls, user, password, token, tls_certificate, tls_key), strict=True)
    return Servers(addresses, {name: value for name, value in given if value})


def options_of(addresses: str) -> dict[str, str]:
    """The options of the data source that say where the cluster is, and how to get in."""
    return {"servers": str(addresses), **access_options(addresses)}


def frame_of(spark: Any, addresses: str, timeout_ms: int, **options: str) -> "DataFrame":
    """What the data source reads with these options."""
    given = {**options_of(addresses), "timeoutMs": str(timeout_ms), **options}
    return spark.read.format("antiphon").options(**given).load()


def access_options(addresses: str) -> dict[str, str]:
    """Those of them that say how to get in."""
    return addresses.access_options if isinstance(addresses, Servers) else {}


def access_in(options: Mapping[str, str]) -> Access | None:
    """What options of the data source say of how to get in, however Spark has written their names; None: nothing.

    Raises InvalidRequestError, without what they say.
    """
    said = {name.lower(): value for name, value in options.items()}
    return access_of(**{name: said.get(option.lower(), "") for name, option in SETTINGS.items()})
