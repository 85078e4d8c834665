"""Signed certificates: their contents, forgeries, and the formats for other tools."""

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from backend.cli.main import app
from backend.domain.environments.attestation import fingerprint_of, sign
from backend.domain.environments.packages import CERTIFICATE_PATH
from backend.domain.vocabulary import CheckStatus
from backend.environments.tables import EnvironmentVersion, SigningKey
from tests.environments.test_certificates import audited, certify, result

FILE = "/api/v1/environments/guess/versions/1/certificate/file"
EXPORT = "/environments/guess/versions/1/export.zip"


@pytest.fixture
def checked(session: Session, version: EnvironmentVersion) -> EnvironmentVersion:
    """Version 1 of `guess` with a check of every outcome."""
    certify(
        session,
        version,
        result("gold", CheckStatus.PASSED, seconds=1.5, episodes=3, details={"mean": 0.5}),
        result("floor", CheckStatus.WARNED, advice="Raise <it>.", label="Floor"),
        result("levels", CheckStatus.SKIPPED, applies=False),
        result("steps", CheckStatus.SKIPPED),
        result("leak", CheckStatus.FAILED, rollouts=["01890000-0000-7000-8000-00000000abcd"]),
    )
    return version


def verified(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    run = CliRunner().invoke(app, ["certificate", "verify", str(path), *options, "--json"])
    return run.exit_code, json.loads(run.stdout) if run.stdout else {"error": run.output}


@pytest.fixture
def key(viewer: TestClient) -> dict[str, str]:
    return dict(viewer.get("/api/v1/certificate-key").json())


@pytest.fixture
def envelope(viewer: TestClient, checked: EnvironmentVersion) -> dict[str, Any]:
    return dict(viewer.get(FILE).json())


def test_the_signature_follows_dsse_and_the_payload_is_an_in_toto_statement(
    envelope: dict[str, Any], key: dict[str, str], checked: EnvironmentVersion
):
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    [signature] = envelope["signatures"]
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    public = load_pem_public_key(key["public_key"].encode())
    public.verify(base64.b64decode(signature["sig"]), signed)  # type: ignore[union-attr, call-arg]
    assert signature["keyid"] == key["fingerprint"]
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "guess@1", "digest": {"proctorPackageV1": checked.content_hash}}]
    predicate = statement["predicate"]
    assert (predicate["status"], predicate["summary"]["failed"]) == ("failed", 1)
    assert predicate["checks"][0]["details"] == {"mean": 0.5}
    assert predicate["proctor"]["signedBy"]


def test_the_coverage_of_the_grader_is_in_every_form(session: Session, viewer: TestClient, version: EnvironmentVersion):
    certify(session, version, *audited())
    signed = json.loads(base64.b64decode(viewer.get(FILE).json()["payload"]))["predicate"]["coverage"]
    [log] = viewer.get(FILE, params={"form": "sarif"}).json()["runs"]
    assert log["properties"]["coverage"] == signed
    assert signed["score"] == pytest.approx(0.7114, abs=1e-4)
    assert [each["check"] for each in signed["shares"]][2] == "branches_executed"
    [place] = log["results"][0]["relatedLocations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "server/guess.py"
    junit = ElementTree.fromstring(viewer.get(FILE, params={"form": "junit"}).text)
    figures = {each.get("name"): each.get("value") for each in junit.iter("property")}
    assert figures["coverage"] == "0.7114 [0.6343, 0.7726]"
    assert figures["branches_executed"].startswith("0.5000 [")


def test_the_same_certificate_is_the_same_file(viewer: TestClient, envelope: dict[str, Any]):
    assert viewer.get(FILE).json() == envelope


def test_an_export_is_verified_as_zip_and_as_folder(
    viewer: TestClient, checked: EnvironmentVersion, key: dict[str, str], tmp_path: Path
):
    archive = tmp_path / "guess.zip"
    archive.write_bytes(viewer.get(EXPORT).content)
    pem = tmp_path / "key.pem"
    pem.write_text(key["public_key"])
    status, found = verified(archive, "--key", str(pem))
    assert (status, found["outcome"], found["checks"]) == (0, "valid", "failed")
    assert found["content_hash"] == checked.content_hash
    assert verified(archive, "--key", key["fingerprint"], "--passed")[0] == 1
    folder = tmp_path / "guess"
    zipfile.ZipFile(io.BytesIO(archive.read_bytes())).extractall(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "models.pyc").write_bytes(b"\0")
    status, found = verified(folder, "--key", key["fingerprint"])
    assert (status, found["outcome"], found["not_compared"]) == (0, "valid", ["__pycache__"])
    (folder / "server" / "app.py").write_text("app = None\n")
    (folder / "new.py").write_text("")
    status, found = verified(folder, "--key", key["fingerprint"])
    assert (status, found["outcome"], found["differences"]) == (3, "other_content", ["new.py", "server/app.py"])


def test_a_separate_certificate_holds_for_the_versions_own_files(
    viewer: TestClient, envelope: dict[str, Any], checked: EnvironmentVersion, key: dict[str, str], tmp_path: Path
):
    file, folder = tmp_path / "certificate.json", tmp_path / "package.zip"
    file.write_text(json.dumps(envelope))
    folder.write_bytes(viewer.get("/api/v1/environments/guess/versions/1/files").content)
    trusted = ("--key", key["fingerprint"])
    assert verified(file, *trusted)[1]["sentence"].endswith("No files were compared.")
    assert verified(file, *trusted, "--package", str(folder))[1]["outcome"] == "valid"
    with zipfile.ZipFile(folder, "a") as archive:
        archive.writestr("more.txt", "more")
    assert verified(file, *trusted, "--package", str(folder))[0] == 3


def test_what_was_changed_is_forged_and_what_another_key_signed_is_unknown(
    envelope: dict[str, Any], key: dict[str, str], tmp_path: Path
):
    file = tmp_path / "certificate.json"
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["status"] = "passed"
    changed = base64.b64encode(json.dumps(statement).encode()).decode()
    file.write_text(json.dumps(envelope | {"payload": changed}))
    assert verified(file, "--key", key["fingerprint"])[1]["outcome"] == "forged"
    assert verified(file)[0] == 1

    stranger = Ed25519PrivateKey.generate()
    file.write_text(sign(statement, stranger))  # in the name of the installation's key
    assert verified(file, "--key", key["fingerprint"])[1]["outcome"] == "forged"
    public = base64.b64encode(stranger.public_key().public_bytes_raw()).decode()
    statement["predicate"]["signer"] = {"publicKey": public}
    file.write_text(sign(statement, stranger))
    status, found = verified(file, "--key", key["fingerprint"])
    assert (status, found["outcome"], found["key"]) == (4, "unknown_key", fingerprint_of(stranger.public_key()))
    assert verified(file, "--key", fingerprint_of(stranger.public_key()))[0] == 0
    file.write_text(json.dumps(envelope))
    assert verified(file)[0] == 4, "nobody is trusted unless named"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"payloadType": "application/vnd.in-toto+json", "payload": "e30=", "signatures": [{"sig": ""}]}',
        '{"payloadType": "text/plain", "payload": "e30=", "signatures": [{"sig": ""}]}',
        '{"payloadType": "application/vnd.in-toto+json", "payload": "?", "signatures": [{"sig": "?"}]}',
    ],
)
def test_what_is_no_certificate_is_refused(content: str, tmp_path: Path):
    (tmp_path / "c.json").write_text(content)
    status, found = verified(tmp_path / "c.json")
    assert status == 2
    assert "proctor: " in found["error"]


def test_wrong_keys_and_missing_files_are_refused(tmp_path: Path):
    (tmp_path / "key.pem").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    for words in (["--key", str(tmp_path / "key.pem")], ["--key", "abc"], []):
        assert verified(tmp_path / "missing.json", *words)[0] == 2
    (tmp_path / "openenv.yaml").write_text("name: guess\n")
    assert "not checked" in verified(tmp_path)[1]["error"]


def test_an_unchecked_version_has_a_badge_and_no_certificate(viewer: TestClient, version: EnvironmentVersion):
    assert viewer.get(FILE).status_code == 404
    badge = viewer.get(FILE, params={"form": "badge"})
    assert badge.headers["content-type"].startswith("image/svg+xml")
    assert "not checked" in badge.text
    assert CERTIFICATE_PATH not in viewer.get("/api/v1/environments/guess/versions/1/export").json()["files"]


def test_the_badge_states_the_version_and_loads_nothing(viewer: TestClient, checked: EnvironmentVersion):
    text = viewer.get(FILE, params={"form": "badge"}).text
    drawing = ElementTree.fromstring(text)
    assert "guess v1" in text
    assert "checks failed" in text
    assert "href" not in text
    assert {each.tag.partition("}")[2] for each in drawing.iter()} <= {"svg", "title", "clipPath", "rect", "g", "text"}


def test_sarif_has_a_rule_for_every_check_and_a_result_for_every_problem(
    viewer: TestClient, checked: EnvironmentVersion
):
    log = viewer.get(FILE, params={"form": "sarif"}).json()
    assert log["version"] == "2.1.0"
    [run] = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["gold", "floor", "levels", "steps", "leak"]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("floor", "warning"),
        ("steps", "note"),
        ("leak", "error"),
    ]
    for each in run["results"]:
        assert rules[each["ruleIndex"]] == each["ruleId"]
        assert each["message"]["text"]
        assert each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "openenv.yaml"


def test_junit_counts_what_its_cases_say(session: Session, viewer: TestClient, version: EnvironmentVersion):
    odd = result(
        "odd", CheckStatus.FAILED, advice="A\x00 \x1b[31m ]]> & \ud800".encode("utf-16", "replace").decode("utf-16")
    )
    certify(session, version, odd, result("gold", CheckStatus.PASSED), result("steps", CheckStatus.SKIPPED))
    root = ElementTree.fromstring(viewer.get(FILE, params={"form": "junit"}).text)
    [suite] = root
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("3", "1", "1")
    assert len(suite.findall("testcase")) == 3
    assert "\N{REPLACEMENT CHARACTER}[31m ]]> &" in (suite.findtext("testcase/failure") or "")


def test_a_new_key_signs_and_the_old_one_still_verifies(
    viewer: TestClient,
    admin: TestClient,
    author: TestClient,
    envelope: dict[str, Any],
    key: dict[str, str],
    tmp_path: Path,
):
    assert author.post("/api/v1/certificate-key").status_code == 403
    new = admin.post("/api/v1/certificate-key").json()
    assert new["fingerprint"] != key["fingerprint"]
    assert viewer.get(FILE).json()["signatures"][0]["keyid"] == new["fingerprint"]
    (tmp_path / "old.json").write_text(json.dumps(envelope))
    assert verified(tmp_path / "old.json", "--key", key["fingerprint"])[0] == 0


def test_a_key_that_cannot_be_decrypted_is_reported(
    session: Session, viewer: TestClient, checked: EnvironmentVersion, key: dict[str, str]
):
    session.query(SigningKey).one().private_key = b"sealed by another secret key"
    session.flush()
    refused = viewer.get(FILE)
    assert refused.status_code == 409
    assert "replace-key" in refused.text


def test_the_pages_show_the_files_and_the_key(viewer: TestClient, checked: EnvironmentVersion, key: dict[str, str]):
    assert f'href="{FILE}?form=signed"' in viewer.get("/environments/guess/versions/1").text
    page = viewer.get("/settings").text
    assert key["fingerprint"] in page
    assert key["public_key"].splitlines()[1] in page


def test_a_certificate_is_no_part_of_a_pushed_folder(viewer: TestClient, checked: EnvironmentVersion, tmp_path: Path):
    from backend.cli.working_copy import read_folder, write_folder

    files = viewer.get("/api/v1/environments/guess/versions/1/export").json()["files"]
    assert CERTIFICATE_PATH in files
    write_folder(tmp_path, files)
    assert not [path for path in read_folder(tmp_path) if path.startswith("proctor-certificate")]
