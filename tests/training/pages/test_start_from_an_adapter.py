"""A run that starts from an adapter's checkpoint trains that adapter on, or is refused before anything is queued."""

import pytest
from sqlalchemy.orm import Session

from backend.domain.vocabulary import PolicyKind, Role, RunKind
from tests.checkpoints.test_export_forms import LORA, QLORA, worker_with
from tests.factories import make_checkpoint, make_environment_version, make_policy, make_run
from tests.training.pages.test_pages import REASON, csrf
from tests.web_fixtures import ClientFor


@pytest.mark.parametrize(
    ("adapter", "kind", "told"),
    [
        (LORA, "full", "continue with adapter.kind=lora"),
        (LORA, "qlora", "trained on a base in bfloat16"),
        (QLORA, "lora", "trained on a base quantized to 4 bits"),
        (LORA, "lora", ""),
        (None, "lora", ""),
    ],
)
def test_how_a_checkpoint_can_be_trained_on(
    adapter: dict[str, object] | None, kind: str, told: str, session: Session, client_for: ClientFor
):
    worker_with(session, "torch", "trl", "peft", "bitsandbytes")
    version = make_environment_version(session)
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    start = make_checkpoint(session, policy, make_run(session, policy=policy, kind=RunKind.TRAINING), adapter=adapter)
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    choices = {"model": {"source": "checkpoint", "checkpoint": str(start.id)}, "adapter": {"kind": kind}}
    request = {"version_id": str(version.id), "configuration": choices, "without_certificate": REASON}
    answer = client.post("/api/v1/training", json=request, headers={"X-CSRF-Token": token})
    assert answer.status_code == (422 if told else 201), answer.text
    assert told in str(answer.json().get("fields", {}).get("adapter.kind", ""))


def test_a_model_made_here_has_nothing_to_adapt(session: Session, client_for: ClientFor):
    worker_with(session, "torch", "trl", "peft")
    version = make_environment_version(session)
    client = client_for(Role.TRAINER)
    token = csrf(client.get("/training/new").text)
    request = {"version_id": str(version.id), "configuration": {"adapter": {"kind": "lora"}}}
    answer = client.post(
        "/api/v1/training", json={**request, "without_certificate": REASON}, headers={"X-CSRF-Token": token}
    )
    assert answer.status_code == 422
    assert "no pretrained weights to adapt" in answer.text
