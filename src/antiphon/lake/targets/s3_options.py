"""How an object store that speaks S3 is reached, told once: fsspec's options as those of the libraries of lake tables.

Tasks write files with fsspec (s3fs), and commits are made by `deltalake` or `pyiceberg`, each with names of its own. What a
target says under `storage` is therefore carried over. Sources: the options of `s3fs.S3FileSystem`, of the crate object_store
(`AmazonS3ConfigKey`), and the table of FileIO properties in pyiceberg's documentation.
"""

from collections.abc import Mapping
from typing import Final

from antiphon.lake.targets.folder import Folder

SCHEMES: Final = ("s3://", "s3a://")
REGION: Final = "us-east-1"  # where a server that is not Amazon's is not told one
DELTA: Final[Mapping[str, str]] = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "region_name": "AWS_REGION",
    "http": "AWS_ALLOW_HTTP",
    "anon": "AWS_SKIP_SIGNATURE",
}
ICEBERG: Final[Mapping[str, str]] = {
    "key": "s3.access-key-id",
    "secret": "s3.secret-access-key",
    "token": "s3.session-token",
    "endpoint_url": "s3.endpoint",
    "region_name": "s3.region",
    "anon": "s3.anonymous",
}


def s3_options(folder: Folder, names: Mapping[str, str]) -> dict[str, str]:
    """What fsspec was told of the folder's store, under another library's names; nothing for other file systems."""
    if not folder.url.startswith(SCHEMES):
        return {}
    told = {**dict(folder.options.get("client_kwargs") or {}), **folder.options}
    endpoint = str(told.get("endpoint_url") or "")
    found = {name: str(told[name]) for name in ("key", "secret", "token", "region_name") if told.get(name)}
    if endpoint:
        found["endpoint_url"] = endpoint
        found.setdefault("region_name", REGION)
    if endpoint.startswith("http://"):
        found["http"] = "true"
    if told.get("anon"):
        found["anon"] = "true"
    return {names[name]: value for name, value in found.items() if name in names}
