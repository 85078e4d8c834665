"""Choosing a form of export, and the way to the Hub: pages and JSON; every role that may not is refused."""

import base64
from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.hub import token_of
from backend.checkpoints.tables import Checkpoint, Export
from backend.core.artifacts import store_id
from backend.core.queue import ARTIFACT_STORE
from backend.core.tables import Job, Worker
from backend.domain.checkpoints.exports import ExportOptions, HubUpload
from backend.domain.vocabulary import ExportForm, ExportStatus, PolicyKind, Role, RunKind
from tests.factories import make_checkpoint, make_policy, make_run
from tests.training.pages.test_pages import csrf
from tests.web_fixtures import ClientFor

LORA = {"base": "Org/Base-1B", "revision": "ab12", "dtype": "bfloat16", "quantisation": None, "rank": 8, "alpha": 16}
QLORA = {**LORA, "quantisation": {"method": "bitsandbytes", "type": "nf4", "is_double": True}}
FILES = {"model.safetensors": 1000, "README.md": 24}


def checkpoint_with(session: Session, adapter: dict[str, object] | None = None) -> Checkpoint:
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    return make_checkpoint(session, policy, make_run(session, policy=policy, kind=RunKind.TRAINING), adapter=adapter)


def completed(session: Session) -> Export:
    checkpoint = checkpoint_with(session)
    assert checkpoint.run_id is not None
    passport = {"passed": True, "files": {"model.safetensors": "ab" * 32}, "sizes": FILES}
    export = Export(checkpoint_id=checkpoint.id, run_id=checkpoint.run_id, status=ExportStatus.COMPLETED)
    export.passport, export.artifact = passport, f"exports/{checkpoint.id}.zip"
    session.add(export)
    session.flush()
    return export


def worker_with(session: Session, *engines: str) -> None:
    told = {"engines": dict.fromkeys(engines, "1")}
    session.add(Worker(name="w", queues=["gpu"], capabilities=told, seen_at=datetime.now(UTC)))
    session.flush()


def offered(client: object, checkpoint: Checkpoint) -> dict[str, str | None]:
    answer = client.get(f"/api/v1/checkpoints/{checkpoint.id}/exports/forms")  # type: ignore[attr-defined]
    return {each["form"]: each["refusal"] for each in answer.json()["items"]}


def test_whole_weights_are_offered_whole(session: Session, client_for: ClientFor):
    found = offered(client_for(Role.VIEWER), checkpoint_with(session))
    assert [form for form, refusal in found.items() if refusal is None] == ["full"]
    assert "no adapter" in (found["merged"] or "")
    assert "convert_hf_to_gguf.py" in (found["gguf"] or "")


def test_an_adapter_is_offered_alone_and_merged(session: Session, client_for: ClientFor):
    found = offered(client_for(Role.VIEWER), checkpoint_with(session, LORA))
    assert [form for form, refusal in found.items() if refusal is None] == ["adapter", "merged"]
    assert found["merged_dequantised"] == "Its base was not quantized."


def test_what_needs_bitsandbytes_needs_a_worker_that_has_it(session: Session, client_for: ClientFor):
    checkpoint = checkpoint_with(session, QLORA)
    client = client_for(Role.VIEWER)
    assert "no worker has bitsandbytes" in (offered(client, checkpoint)["merged"] or "")
    worker_with(session, "bitsandbytes", "llama.cpp")
    found = offered(client, checkpoint)
    assert [form for form, refusal in found.items() if refusal is None] == [
        "adapter",
        "merged",
        "merged_dequantised",
        "gguf",
    ]


def test_the_page_offers_the_forms_and_states_why_not_the_others(session: Session, client_for: ClientFor):
    checkpoint = checkpoint_with(session, LORA)
    page = client_for(Role.TRAINER).get(f"/exports/new?checkpoint_id={checkpoint.id}").text
    for shown in ("Merged into the original base", "Its base was not quantized.", "Org/Base-1B", "adapter, rank 8"):
        assert shown in page
    assert 'value="merged" checked' in page
    assert 'value="full" disabled' in page


def test_the_form_starts_an_export_with_its_options(session: Session, client_for: ClientFor):
    checkpoint = checkpoint_with(session, LORA)
    client = client_for(Role.TRAINER)
    token = csrf(client.get(f"/exports/new?checkpoint_id={checkpoint.id}").text)
    sent = {"csrf_token": token, "checkpoint_id": str(checkpoint.id), "export_form": "adapter", "licence": "apache-2.0"}
    answer = client.post("/exports", data={**sent, "is_stored": "true"})
    export = session.scalars(select(Export)).one()
    assert (answer.status_code, answer.headers["location"]) == (303, f"/exports/{export.id}")
    assert export.form is ExportForm.ADAPTER
    assert ExportOptions.model_validate(export.options) == ExportOptions(licence="apache-2.0", is_stored=True)
    assert "Adapter alone" in client.get(f"/exports/{export.id}").text


def test_the_page_lists_what_was_made_of_the_checkpoint_before(session: Session, client_for: ClientFor):
    export = completed(session)
    page = client_for(Role.TRAINER).get(f"/exports/new?checkpoint_id={export.checkpoint_id}")
    assert page.status_code == 200
    assert f'<a href="/exports/{export.id}">All weights</a>' in page.text


def test_a_form_that_is_not_offered_is_refused_with_the_reason(session: Session, client_for: ClientFor):
    checkpoint = checkpoint_with(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get(f"/exports/new?checkpoint_id={checkpoint.id}").text)
    asked = {"checkpoint_id": str(checkpoint.id), "form": "merged"}
    answer = client.post("/api/v1/exports", json=asked, headers={"X-CSRF-Token": token})
    assert answer.status_code == 422
    assert "All weights were trained" in answer.text


def test_excluded_the_form_is_the_usual_one(session: Session, client_for: ClientFor):
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    for adapter, form in ((None, "full"), (LORA, "merged")):
        asked = {"checkpoint_id": str(checkpoint_with(session, adapter).id)}
        answer = client.post("/api/v1/exports", json=asked, headers={"X-CSRF-Token": token})
        assert (answer.status_code, answer.json()["form"]) == (201, form)


def test_two_forms_of_a_checkpoint_are_two_exports(session: Session, client_for: ClientFor):
    checkpoint = checkpoint_with(session, LORA)
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    for form in ("merged", "adapter", "merged"):
        asked = {"checkpoint_id": str(checkpoint.id), "form": form}
        client.post("/api/v1/exports", json=asked, headers={"X-CSRF-Token": token})
    assert {export.form for export in session.scalars(select(Export))} == {ExportForm.MERGED, ExportForm.ADAPTER}
    listed = client.get(f"/api/v1/exports?checkpoint_id={checkpoint.id}").json()["items"]
    assert len(listed) == 2


def test_a_dry_run_shows_what_would_be_sent_and_sends_nothing(session: Session, client_for: ClientFor):
    export = completed(session)
    client = client_for(Role.TRAINER)
    page = client.get(f"/exports/{export.id}?repository=me/tiny&is_private=true").text
    for shown in ("Nothing was uploaded yet", "private model repository <b>me/tiny</b>", "2 files", "Upload"):
        assert shown in page
    asked = {"repository": "me/tiny", "dry_run": True, "token": "hf_secret"}
    answer = client.post(f"/api/v1/exports/{export.id}/hub", json=asked, headers={"X-CSRF-Token": csrf(page)})
    assert answer.json()["files"] == FILES
    assert (answer.json()["bytes"], answer.json()["upload"]) == (1024, None)
    assert session.scalars(select(Job)).all() == []


def test_an_upload_is_queued_and_its_token_is_nowhere_to_be_read(session: Session, client_for: ClientFor):
    export = completed(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get(f"/exports/{export.id}").text)
    sent = {"csrf_token": token, "repository": "me/tiny", "is_private": "true", "token": "hf_secret"}
    answer = client.post(f"/exports/{export.id}/hub", data=sent)
    assert answer.status_code == 303
    job = session.scalars(select(Job)).one()
    assert (job.name, job.arguments) == ("exports.upload", {"export_id": str(export.id), ARTIFACT_STORE: store_id()})
    options = ExportOptions.model_validate(export.options)
    assert options.hub is not None
    assert (options.hub.repository, options.hub.is_private, options.hub.status) == ("me/tiny", True, "queued")
    assert b"hf_secret" not in base64.b64decode(options.hub_secret or "")
    assert token_of(options) == "hf_secret"
    told = client.get(f"/api/v1/exports/{export.id}")
    assert told.json()["upload"]["repository"] == "me/tiny"
    for text in (told.text, client.get(f"/exports/{export.id}").text):
        assert "hf_secret" not in text
        assert (options.hub_secret or "-") not in text


def test_a_token_that_was_moved_to_another_repository_cannot_be_opened(session: Session, client_for: ClientFor):
    export = completed(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get(f"/exports/{export.id}").text)
    asked = {"repository": "me/tiny", "token": "hf_secret"}
    client.post(f"/api/v1/exports/{export.id}/hub", json=asked, headers={"X-CSRF-Token": token})
    options = ExportOptions.model_validate(export.options)
    elsewhere = HubUpload(repository="thief/tiny", asked_at=datetime.now(UTC))
    with pytest.raises(ValueError, match="cannot be decrypted"):
        token_of(options.model_copy(update={"hub": elsewhere}))


def test_a_second_upload_waits_for_the_first(session: Session, client_for: ClientFor):
    export = completed(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get(f"/exports/{export.id}").text)
    answers = [
        client.post(f"/api/v1/exports/{export.id}/hub", json={"repository": "me/tiny"}, headers={"X-CSRF-Token": token})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 409]


@pytest.mark.parametrize("repository", ["tiny", "me/tiny/more", "me/<b>", "../tiny"])
def test_what_is_no_repository_is_refused(repository: str, session: Session, client_for: ClientFor):
    export = completed(session)
    client = client_for(Role.TRAINER)
    page = client.get(f"/exports/{export.id}", params={"repository": repository})
    assert page.status_code == 200
    assert "is not a repository name" in page.text
    assert "<b>me/<b>" not in page.text
    asked = {"repository": repository}
    answer = client.post(f"/api/v1/exports/{export.id}/hub", json=asked, headers={"X-CSRF-Token": csrf(page.text)})
    assert answer.status_code == 422


def test_what_is_not_proven_is_not_uploaded(session: Session, client_for: ClientFor):
    export = completed(session)
    export.status = ExportStatus.REFUSED
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    asked = {"repository": "me/tiny"}
    answer = client.post(f"/api/v1/exports/{export.id}/hub", json=asked, headers={"X-CSRF-Token": token})
    assert answer.status_code == 409


def test_a_viewer_may_look_and_not_send(session: Session, client_for: ClientFor):
    export = completed(session)
    client = client_for(Role.VIEWER)
    page = client.get(f"/exports/{export.id}").text
    assert "See what would be sent" not in page
    assert client.get(f"/exports/new?checkpoint_id={export.checkpoint_id}").status_code == 403
    asked = {"repository": "me/tiny"}
    answer = client.post(f"/api/v1/exports/{export.id}/hub", json=asked, headers={"X-CSRF-Token": csrf(page)})
    assert answer.status_code == 403
