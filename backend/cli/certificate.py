"""`proctor certificate verify`: check a signed certificate, and the package that it belongs to, without a server."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.output import BAD_RESULT, OK, AsJson, fail, group, say, write_fields, write_json

OTHER_CONTENT, UNKNOWN_KEY = 3, 4
"""Exit codes in addition to the usual ones."""
MAX_FILES, MAX_BYTES = 2_000, 64 << 20
"""Limits of a package that is compared."""

app = group(help="Signed certificates of environments: verify them offline, show the key that signs them.")


@app.command("verify")
def verify(
    target: Annotated[
        Path, typer.Argument(metavar="PATH", help="A signed certificate, or an exported package (zip or folder).")
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="Trusted public key: a PEM file, or a fingerprint from `proctor certificate key`. Repeat for several."
        ),
    ] = None,
    package: Annotated[
        Path | None, typer.Option(help="Package (zip or folder) to compare with a certificate in a separate file.")
    ] = None,
    passed: Annotated[bool, typer.Option("--passed", help="Also exit with 1 unless all checks passed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a signed certificate. Needs no server.

    Exits with 0 if it is valid, 1 if it was forged, 3 if it belongs to other content, 4 if you do not trust its key,
    and 2 if something cannot be read.
    """
    import zipfile

    from backend.domain.environments import attestation
    from backend.domain.environments.packages import CERTIFICATE_PATH

    trusted = []
    for text in key or ():
        try:
            file = Path(text)
            trusted.append(attestation.read_trusted_key(file.read_text("utf-8") if file.is_file() else text))
        except (attestation.KeyInvalid, UnicodeDecodeError, OSError):
            fail(f"{text} is neither a file with an Ed25519 public key in PEM form nor a fingerprint of 64 digits")
    is_package = target.is_dir() or (target.is_file() and zipfile.is_zipfile(target))
    if is_package and package:
        fail("--package belongs to a certificate in a separate file")
    files, skipped = _read_package(target if is_package else package) if is_package or package else (None, [])
    own = files.pop(CERTIFICATE_PATH, None) if files is not None else None
    if is_package and own is None:
        fail(f"{target} has no {CERTIFICATE_PATH}: its version was not checked when it was exported")
    try:
        envelope = own if is_package and own is not None else _read(target, attestation.MAX_ENVELOPE_BYTES)
        found = attestation.verify(envelope, trusted, files)
    except attestation.CertificateUnreadable as error:
        fail(f"{target}: {error}")
    except OSError as error:
        fail(f"{target} cannot be read: {error.strerror}")
    status = {
        attestation.Outcome.VALID: OK,
        attestation.Outcome.FORGED: BAD_RESULT,
        attestation.Outcome.OTHER_CONTENT: OTHER_CONTENT,
        attestation.Outcome.UNKNOWN_KEY: UNKNOWN_KEY,
    }[found.outcome]
    certificate = found.certificate
    if passed and status == OK and certificate and certificate.status != "passed":
        status = BAD_RESULT
    facts = {} if certificate is None else {
        "environment": f"{certificate.environment.name}@{certificate.environment.version}",
        "content hash": certificate.environment.contentHash,
        "checks": certificate.status,
        "checked": certificate.checkedAt,
        "by Proctor": certificate.proctor.get("checkedBy"),
        "key": found.fingerprint,
    }  # fmt: skip
    if as_json:
        write_json(
            {
                "outcome": found.outcome,
                "sentence": found.sentence,
                **{name.replace(" ", "_"): value for name, value in facts.items()},
                "differences": found.differences,
                "not_compared": skipped,
            }
        )
        raise typer.Exit(status)
    style = "green" if found.outcome == attestation.Outcome.VALID else "red"
    say(f"{found.outcome.replace('_', ' ')}: {found.sentence}", style)
    write_fields(facts)
    if skipped:
        say(f"not compared: {', '.join(skipped[:5])}{' …' if len(skipped) > 5 else ''}", "yellow")
    if found.outcome == attestation.Outcome.UNKNOWN_KEY:
        say("Anyone can sign with their own key. Pass the key that you trust: --key FILE or --key FINGERPRINT", "dim")
    raise typer.Exit(status)


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        return file.read(limit + 1)


def _read_package(path: Path | None) -> tuple[dict[str, bytes], list[str]]:
    """Return a package's files as they are on disk, and the paths of a folder that were not read."""
    from backend.cli.working_copy import is_ignored
    from backend.domain.zips import BadZip, open_zip, read_member

    files: dict[str, bytes] = {}
    skipped: set[str] = set()
    left = MAX_BYTES
    if path is None or not path.exists():
        fail(f"there is no {path}")
    if path.is_dir():
        for each in sorted(path.rglob("*")):
            inside = each.relative_to(path)
            if is_ignored(inside):
                skipped.add(next(str(part) for part in (*reversed(inside.parents), inside) if is_ignored(part)))
            elif each.is_symlink():
                fail(f"{inside} is a link: a package contains none")
            elif each.is_file():
                files[inside.as_posix()] = content = _read(each, left)
                left -= len(content)
                if left < 0 or len(files) > MAX_FILES:
                    fail(f"{path} has more than {MAX_FILES:,} files or {MAX_BYTES >> 20} MB")
        return files, sorted(skipped)
    try:
        with path.open("rb") as file, open_zip(file, max_files=MAX_FILES, max_bytes=MAX_BYTES) as archive:
            for entry in archive.infolist():
                if entry.filename in files:
                    fail(f"{path} has two files named {entry.filename}")
                if not entry.is_dir():
                    files[entry.filename] = content = read_member(archive, entry, left)
                    left -= len(content)
    except BadZip as error:
        fail(f"{path}: {error}")
    return files, []
