"""The software bill of materials of a release, in CycloneDX, from the lock file."""

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from tests.release.lock import OURS, Locked


def bill_of_materials(
    version: str, wheel_sha256: str, locked: Iterable[Locked], scopes: Mapping[str, str], time_s: int
) -> str:
    """The JSON document, checked against CycloneDX's schema. The same arguments give the same bytes.

    A package of the lock stands for its files, so their hashes are those of its distributions; which of the files is
    installed depends on the system. Raises ValueError if the document breaks the schema.
    """
    ours = Component(
        name=OURS,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=OURS,
        purl=PackageURL("pypi", None, OURS, version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel_sha256)],
    )
    components = {one: _component(one, scopes[one.name]) for one in locked}
    bom = Bom(
        components=components.values(),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"{OURS} {version} {wheel_sha256}"),
    )
    bom.metadata.component = ours
    bom.metadata.timestamp = datetime.fromtimestamp(time_s, UTC)
    for name in {OURS, *(one.name for one in components)}:
        needs = [component for one, component in components.items() if name in one.needed_by]
        for target in [ours] if name == OURS else [c for one, c in components.items() if one.name == name]:
            bom.register_dependency(target, needs)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill of materials is not CycloneDX: {wrong}")
    return text + "\n"


def _component(one: Locked, scope: str) -> Component:
    url = PackageURL("pypi", None, one.name, one.version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=content) for content in one.hashes]
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=XsUri(url.to_string()), hashes=hashes
    )
    return Component(
        name=one.name,
        version=one.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{one.name}=={one.version}",
        purl=url,
        scope=ComponentScope(scope),
        external_references=[files],
        properties=[Property(name="antiphon:marker", value=one.marker)] if one.marker else [],
    )
