"""Certificates for tests: an authority, one that nobody trusts, and what they signed."""

from functools import cache
from pathlib import Path

from antiphon.security.authority import Issued, issue, new_authority
from antiphon.security.settings import Tls

HOSTS = ("localhost", "127.0.0.1", "::1")


@cache
def authority(name: str = "test authority") -> Issued:
    """One authority a name, made once."""
    return new_authority(name)


def put(directory: Path, name: str, issued: Issued) -> tuple[str, str]:
    """Write a certificate and its key into a folder; returns the files' names."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.pem").write_bytes(issued.certificate)
    (directory / f"{name}.key").write_bytes(issued.key)
    return f"{name}.pem", f"{name}.key"


def server_files(
    directory: Path, client_auth: str = "none", name: str = "node", signer: str = "test authority"
) -> Tls:
    """The files of a listener in a folder, as settings."""
    certificate, key = put(directory, "server", issue(authority(signer), name, HOSTS))
    (directory / "authority.pem").write_bytes(authority(signer).certificate)
    return Tls(certificate, key, "authority.pem", client_auth)


def client_files(directory: Path, name: str = "alice", signer: str = "test authority") -> tuple[Path, Path]:
    """A client's certificate and key."""
    certificate, key = put(directory, name, issue(authority(signer), name, ()))
    return directory / certificate, directory / key
