"""Signed certificates: an in-toto Statement in a DSSE envelope with an Ed25519 signature.

A DSSE envelope signs bytes, so no canonical form of JSON is needed: the payload is verified exactly as it was sent and
parsed only afterward. Formats: https://github.com/secure-systems-lab/dsse (v1.0) and
https://github.com/in-toto/attestation (Statement v1).
"""

import base64
import binascii
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.domain.environments.packages import binary_as_text, content_hash

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:proctor:environment-certificate:v1"
DIGEST = "proctorPackageV1"
"""Name of the digest of a package: `content_hash` of its files."""
MAX_ENVELOPE_BYTES = 8 << 20
_NAMED = 5
"""Files that a message about other content names."""


class KeyInvalid(ValueError):
    """The text is neither an Ed25519 public key in PEM form nor a fingerprint."""


class CertificateUnreadable(ValueError):
    """The file is not a signed certificate. The message states why."""


class Outcome(StrEnum):
    VALID = "valid"
    FORGED = "forged"
    """Changed after it was signed, or signed by someone else in the name of the key that it states."""
    OTHER_CONTENT = "other_content"
    """Signed by a trusted key, for other files."""
    UNKNOWN_KEY = "unknown_key"
    """Unchanged since it was signed, by a key that is not trusted."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Signature(_Strict):
    keyid: str = Field("", max_length=200)
    sig: str = Field(max_length=200)


class Envelope(_Strict):
    """A DSSE envelope. `payload` is Base64."""

    payloadType: str = Field(max_length=200)
    payload: str
    signatures: list[_Signature] = Field(min_length=1, max_length=10)


class Signer(_Strict):
    publicKey: str = Field(max_length=100)
    """Base64 of the 32 bytes."""


class CertifiedEnvironment(_Strict):
    name: str = Field(max_length=100)
    version: int
    contentHash: str = Field(max_length=100)


class CertificatePredicate(_Strict):
    """The certified facts. Further fields, such as the checks with their figures, are for readers."""

    environment: CertifiedEnvironment
    status: str = Field(max_length=32)
    checkedAt: str = Field(max_length=64)
    proctor: dict[str, str | None]
    """`checkedBy` and `signedBy`: versions of Proctor."""
    signer: Signer
    files: dict[str, str] | None = None
    """SHA-256 of each file of the exported package, by path. None: the certificate was not exported with one."""


class Statement(_Strict):
    type: str = Field(alias="_type")
    predicateType: str
    predicate: CertificatePredicate


@dataclass(frozen=True, slots=True)
class Verification:
    outcome: Outcome
    sentence: str
    """The finding, for people."""
    fingerprint: str | None = None
    """Fingerprint of the key whose signature is intact."""
    certificate: CertificatePredicate | None = None
    """None if the signature does not hold."""
    differences: tuple[str, ...] = field(default=())
    """Paths of the files that differ from the certified ones."""


def fingerprint_of(key: Ed25519PublicKey) -> str:
    """Return SHA-256 over the key's SubjectPublicKeyInfo in DER form, as 64 hexadecimal digits."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def pem_of(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def read_trusted_key(text: str) -> Ed25519PublicKey | str:
    """Read a public key in PEM form, or a fingerprint (64 hexadecimal digits, colons allowed). Raises KeyInvalid."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if len(digits) == 64 and not set(digits) - set("0123456789abcdef"):
        return digits
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyInvalid(KeyInvalid.__doc__) from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyInvalid("The key is not an Ed25519 key.")
    return key


def make_statement(
    *,
    name: str,
    version: int,
    digest: str,
    status: str,
    checked_at: str,
    results: Sequence[Mapping[str, Any]],
    checked_by: str | None,
    signed_by: str,
    key: Ed25519PublicKey,
    coverage: Mapping[str, Any] | None = None,
    package: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """Return the in-toto Statement of a certificate.

    `results` are `CheckResult`s as JSON, `coverage` is an `AuditCoverage`. `package` holds the exported files as they
    are on disk, if it is exported.
    """
    subjects = [{"name": f"{name}@{version}", "digest": {DIGEST: digest}}]
    predicate: dict[str, Any] = {
        "environment": {"name": name, "version": version, "contentHash": digest},
        "status": status,
        "checkedAt": checked_at,
        "proctor": {"checkedBy": checked_by, "signedBy": signed_by},
        "summary": dict(Counter(str(each["status"]) for each in results)),
        "checks": [dict(each) for each in results],
        "signer": {"publicKey": base64.b64encode(key.public_bytes_raw()).decode(), "fingerprint": fingerprint_of(key)},
    }
    if coverage is not None:
        predicate["coverage"] = dict(coverage)
    if package is not None:
        predicate["files"] = {path: hashlib.sha256(content).hexdigest() for path, content in package.items()}
        subjects.append({"name": f"{name}@{version} (exported)", "digest": {DIGEST: content_hash(_as_text(package))}})
    return {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": PREDICATE_TYPE, "predicate": predicate}


def sign(statement: Mapping[str, Any], key: Ed25519PrivateKey) -> str:
    """Return the envelope as JSON. The same statement and key always give the same text."""
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    signature = {
        "keyid": fingerprint_of(key.public_key()),
        "sig": base64.b64encode(key.sign(_signed_bytes(PAYLOAD_TYPE, payload))).decode(),
    }
    text = base64.b64encode(payload).decode()
    return json.dumps({"payloadType": PAYLOAD_TYPE, "payload": text, "signatures": [signature]}, indent=2) + "\n"


def verify(
    envelope: bytes, trusted: Sequence[Ed25519PublicKey | str], package: Mapping[str, bytes] | None = None
) -> Verification:
    """Verify a certificate against trusted keys (or their fingerprints), and a package against the certificate.

    `package` holds the files as they are on disk, without the certificate itself. Raises CertificateUnreadable.
    """
    try:
        if len(envelope) > MAX_ENVELOPE_BYTES:
            raise CertificateUnreadable(f"it is larger than {MAX_ENVELOPE_BYTES >> 20} MB")
        sealed = Envelope.model_validate_json(envelope)
        payload = base64.b64decode(sealed.payload, validate=True)
        signatures = [base64.b64decode(each.sig, validate=True) for each in sealed.signatures]
        if sealed.payloadType != PAYLOAD_TYPE:
            raise CertificateUnreadable(f"its payload is {sealed.payloadType!r}, not an in-toto Statement")
        statement = Statement.model_validate_json(payload)
        if (statement.type, statement.predicateType) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise CertificateUnreadable("it is a statement about something else")
        stated = Ed25519PublicKey.from_public_bytes(base64.b64decode(statement.predicate.signer.publicKey))
    except (ValidationError, binascii.Error, RecursionError) as error:
        raise CertificateUnreadable("it is not a DSSE envelope with a certificate of Proctor") from error
    except ValueError as error:
        reason = str(error) if isinstance(error, CertificateUnreadable) else "its public key is damaged"
        raise CertificateUnreadable(reason) from error

    signed, stated_print = _signed_bytes(sealed.payloadType, payload), fingerprint_of(stated)
    keys = {stated_print: stated} if stated_print in trusted else {}
    keys |= {fingerprint_of(key): key for key in trusted if isinstance(key, Ed25519PublicKey)}
    holds = next((name for name, key in keys.items() if any(_holds(key, each, signed) for each in signatures)), None)
    if holds is None and any(_holds(stated, each, signed) for each in signatures):
        reason = f"Unchanged since it was signed, but by a key that you do not trust: {stated_print}."
        return Verification(Outcome.UNKNOWN_KEY, reason, stated_print, statement.predicate)
    if holds is None:
        return Verification(Outcome.FORGED, "The signature does not match: it was changed, or signed by another key.")
    certificate = statement.predicate
    environment = certificate.environment
    title = f"{environment.name} v{environment.version}"
    if package is None:
        sentence = f"Signed for {title} with the content hash {environment.contentHash}. No files were compared."
        return Verification(Outcome.VALID, sentence, holds, certificate)
    if content_hash(_as_text(package)) == environment.contentHash:
        return Verification(Outcome.VALID, f"Signed for exactly these files of {title}.", holds, certificate)
    if certificate.files is None:
        sentence = f"Signed for {title} with other files: their content hash is not {environment.contentHash}."
        return Verification(Outcome.OTHER_CONTENT, sentence, holds, certificate)
    found = {path: hashlib.sha256(content).hexdigest() for path, content in package.items()}
    paths = certificate.files.keys() | found.keys()
    differ = tuple(sorted(path for path in paths if certificate.files.get(path) != found.get(path)))
    if not differ:
        return Verification(Outcome.VALID, f"Signed for exactly this export of {title}.", holds, certificate)
    names = ", ".join(differ[:_NAMED]) + (f" and {len(differ) - _NAMED} more" if len(differ) > _NAMED else "")
    return Verification(
        Outcome.OTHER_CONTENT, f"Signed for {title}, but not for these files: {names}.", holds, certificate, differ
    )


def _signed_bytes(kind: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding: `DSSEv1 SP LEN(type) SP type SP LEN(payload) SP payload`."""
    return b"DSSEv1 %d %b %d %b" % (len(kind.encode()), kind.encode(), len(payload), payload)


def _holds(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _as_text(package: Mapping[str, bytes]) -> dict[str, str]:
    """Return a package's files as a version stores them: binary files encoded as text."""
    files = {}
    for path, content in package.items():
        try:
            files[path] = content.decode()
        except UnicodeDecodeError:
            name, text = binary_as_text(path, content)
            files[name] = text
    return files
