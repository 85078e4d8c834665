"""Certificates outside of Proctor: signed, in formats for other tools, and in exported packages."""

import base64
import json
from dataclasses import asdict
from importlib.metadata import version as package_version

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.sealing import SecretUnreadable, seal, unseal
from backend.domain.environments.attestation import (
    fingerprint_of,
    make_statement,
    pem_of,
    sign,
)
from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.environments.certificate_reports import as_badge, as_junit, as_sarif
from backend.domain.environments.packages import BADGE_PATH, CERTIFICATE_PATH, file_as_bytes
from backend.environments.export import complete_package
from backend.environments.queries import newest_certificate
from backend.environments.schemas import CertificateFile, CertificateKeyResponse
from backend.environments.tables import Certificate, Environment, EnvironmentVersion, SigningKey
from backend.errors import Conflict, NotFound
from backend.runs.tables import Run

_PURPOSE = "certificate-key"
_NEWEST = select(SigningKey).order_by(SigningKey.created_at.desc(), SigningKey.id.desc()).limit(1)


class SigningKeyUnreadable(Conflict):
    """The key that signs certificates cannot be decrypted, because the installation's secret key changed. Restore the
    secret key from a backup, or have an administrator create a new signing key: `proctor certificate replace-key`."""


def signing_key(session: Session) -> SigningKey:
    """Return the installation's key. It is created when it is first needed."""
    if row := session.scalars(_NEWEST).first():
        return row
    session.execute(select(func.pg_advisory_xact_lock(func.hashtext(_PURPOSE))))
    return session.scalars(_NEWEST).first() or replace_key(session)


def public_key(session: Session) -> CertificateKeyResponse:
    """Return the key that verifies the certificates of this installation."""
    row = signing_key(session)
    key = load_pem_public_key(row.public_key.encode())
    assert isinstance(key, Ed25519PublicKey)
    return CertificateKeyResponse.from_row(row, fingerprint=fingerprint_of(key))


def replace_key(session: Session) -> SigningKey:
    """Create a key that signs from now on."""
    key = Ed25519PrivateKey.generate()
    private = seal(base64.b64encode(key.private_bytes_raw()).decode(), _PURPOSE)
    row = SigningKey(public_key=pem_of(key.public_key()), private_key=private)
    session.add(row)
    session.flush()
    return row


def certificate_file(
    session: Session, environment: Environment, version: EnvironmentVersion, form: CertificateFile
) -> tuple[str, str, str]:
    """Return the text, the file name and the media type of the version's latest certificate.

    Raises NotFound if there is none, except for the badge.
    """
    title, certificate = f"{environment.name}@{version.number}", newest_certificate(session, version)
    name = f"{environment.name}-v{version.number}"
    if form is CertificateFile.BADGE:
        return _badge(environment, version, certificate), f"{name}-certificate.svg", "image/svg+xml"
    if certificate is None:
        raise NotFound(f"{environment.name} v{version.number} has no certificate yet. Run its checks.")
    if form is CertificateFile.SIGNED:
        text = _signed(session, environment, version, certificate)
        return text, f"{name}-certificate.json", "application/json"
    if form is CertificateFile.JUNIT:
        report = as_junit(title, version.content_hash, certificate.results, certificate.created_at)
        return report, f"{name}-checks.xml", "application/xml"
    by = _checked_by(session, certificate) or package_version("proctor")
    log = as_sarif(title, version.content_hash, certificate.results, proctor=by)
    return json.dumps(log, indent=2) + "\n", f"{name}-checks.sarif", "application/sarif+json"


def certified_package(session: Session, environment: Environment, version: EnvironmentVersion) -> dict[str, str]:
    """Return the complete package with the latest certificate, signed for exactly these files, and its badge.

    A version that was not checked has neither. Needs the version's files.
    """
    files = complete_package(version.files, version.typed_manifest)
    certificate = newest_certificate(session, version)
    if certificate is None:
        return files
    files |= {BADGE_PATH: _badge(environment, version, certificate)}
    on_disk = dict(file_as_bytes(*item) for item in files.items() if item[0] != CERTIFICATE_PATH)
    return files | {CERTIFICATE_PATH: _signed(session, environment, version, certificate, on_disk)}


def _signed(
    session: Session,
    environment: Environment,
    version: EnvironmentVersion,
    certificate: Certificate,
    package: dict[str, bytes] | None = None,
) -> str:
    row = signing_key(session)
    try:
        key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(unseal(row.private_key, _PURPOSE)))
    except SecretUnreadable as error:
        raise SigningKeyUnreadable from error
    coverage = audit_coverage(certificate.results)
    statement = make_statement(
        name=environment.name,
        version=version.number,
        digest=version.content_hash,
        status=str(certificate.status),
        checked_at=certificate.created_at.isoformat(timespec="seconds"),
        results=certificate.results,
        checked_by=_checked_by(session, certificate),
        signed_by=package_version("proctor"),
        key=key.public_key(),
        coverage=asdict(coverage) if coverage else None,
        package=package,
    )
    return sign(statement, key)


def _checked_by(session: Session, certificate: Certificate) -> str | None:
    """Return the version of Proctor that ran the checks; None for checks of 0.2.0, which did not store it."""
    return session.scalar(select(Run.summary["proctor"].as_string()).where(Run.id == certificate.run_id))


def _badge(environment: Environment, version: EnvironmentVersion, certificate: Certificate | None) -> str:
    title = f"{environment.name} v{version.number}"
    details = f"{title}, content hash {version.content_hash}" + (
        f", checked {certificate.created_at:%Y-%m-%d} by Proctor" if certificate else ""
    )
    return as_badge(title, str(certificate.status) if certificate else "not checked", details=details)
