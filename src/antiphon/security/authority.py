"""A private certificate authority, and certificates that it signs, for clusters that bring none: `antiphon up --secure`.

Certificates are the work of the package `cryptography`, which only these functions import. A running node does without.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from antiphon import system

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
RENEW_DAYS: Final = 60  # before its end a certificate is made anew
CLOCKS_DIFFER: Final = timedelta(hours=1)


class Issued(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def new_authority(name: str) -> Issued:
    """An authority that may sign certificates of nodes and clients, and no other authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _issued(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Issued, name: str, hosts: Iterable[str]) -> Issued:
    """A certificate for a node or a client that `authority` signs. `hosts`: host names and addresses that it is good for."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise TypeError("the authority's key is not one of an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = signer.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = _builder(name, str(issuer), key.public_key(), CERTIFICATE_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
    )
    names = [_general_name(host) for host in dict.fromkeys(hosts)]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _issued(builder.sign(signing, hashes.SHA256()), key)


def is_good_for(certificate: bytes, hosts: Iterable[str]) -> bool:
    """Does a certificate name all of these hosts, and will it last a while? Raises ValueError when it is none."""
    wanted = {_general_name(host) for host in hosts}
    found = x509.load_pem_x509_certificate(certificate)
    if found.not_valid_after_utc - _now() < timedelta(days=RENEW_DAYS):
        return False
    try:
        named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return not wanted
    return wanted <= set(named)


def is_from(certificate: bytes, authority: bytes) -> bool:
    """Did this authority sign the certificate? No, where one of them is no certificate."""
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(
            x509.load_pem_x509_certificate(authority)
        )
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def is_pair(issued: Issued) -> bool:
    """Does the key belong to the certificate? Raises ValueError when they are neither."""
    public = x509.load_pem_x509_certificate(issued.certificate).public_key()
    return public == serialization.load_pem_private_key(issued.key, None).public_key()


def last_day(certificate: bytes) -> datetime:
    """When a certificate ends (UTC). Raises ValueError when it is none."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _now() -> datetime:
    return datetime.fromtimestamp(system.wall_s(), UTC)


def _builder(name: str, issuer: str, public: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issued(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
