"""A preflight on a worker: its findings about a run, measured in a child process."""

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import NoResultFound

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.training.configuration import ModelChoice, TrainingConfiguration
from backend.domain.vocabulary import PreflightStatus
from backend.policies.tables import Policy
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.training.tables import Preflight
from tests.training.conftest import SMALL, built_in, stored_version
from workers.models.build import CHAT_TEMPLATE, build_model, build_tokenizer
from workers.tasks.registry import JobContext
from workers.tasks.training import give_up_preflight
from workers.tasks.training import run_preflight as run_job
from workers.training.checkpoints import save_model
from workers.training.preflight.run import run_preflight

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def new_preflight(files: dict[str, str] | None = None, **choices: Any) -> uuid.UUID:
    configuration = TrainingConfiguration.model_validate({**SMALL, **choices})
    with transaction() as session:
        version = stored_version(session, files or built_in("tictactoe"))
        preflight = Preflight(version_id=version.id, configuration=configuration.resolved())
        session.add(preflight)
        session.flush()
        return preflight.id


def look(preflight_id: uuid.UUID) -> Preflight:
    """As the job does it, in a child process."""
    run_job(JobContext(uuid.uuid4(), None, {"preflight_id": str(preflight_id)}, 1))
    with transaction() as session:
        return session.get_one(Preflight, preflight_id)


def look_here(preflight_id: uuid.UUID) -> Preflight:
    run_preflight(preflight_id)
    with transaction() as session:
        return session.get_one(Preflight, preflight_id)


def findings_of(preflight: Preflight) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in preflight.findings}


def test_it_shows_what_will_happen_and_stores_nothing_else(installation: None):
    preflight = look(new_preflight())
    found = findings_of(preflight)
    assert (preflight.status, preflight.reason) == (PreflightStatus.COMPLETED, None)
    assert found["chat_template"]["evidence"] == {"stop_token": "<|end|>", "differences": []}
    assert 0 < found["conversation"]["evidence"]["longest"] <= 192
    assert found["base_success"]["evidence"]["attempts"] == 32 * 4
    assert "The warm-up must change this" in found["base_success"]["sentence"]
    assert found["gradient"]["evidence"]["expected"] > 0.9
    assert found["memory"]["evidence"]["weights"] > 100_000
    assert 0 < found["time"]["evidence"]["seconds"] < 600
    with transaction() as session:
        for table in (Run, Policy, Checkpoint, Rollout):
            assert session.scalar(select(func.count()).select_from(table)) == 0


def test_reinforcement_of_a_model_that_never_succeeds_is_a_problem_with_a_proposal(installation: None):
    found = findings_of(look_here(new_preflight(recipe="grpo")))
    assert found["base_success"]["status"] == "problem"
    assert "Start with SFT" in found["base_success"]["advice"]
    assert "easier level" in found["base_success"]["advice"]


def test_a_model_that_cannot_be_loaded_is_a_finding(installation: None):
    preflight = look_here(new_preflight(model={"source": "base", "base": "/no/such/folder"}))
    found = findings_of(preflight)
    assert preflight.status is PreflightStatus.COMPLETED
    assert found["model"]["status"] == "problem"


def base_in(folder: Path, chat_template: str | None = CHAT_TEMPLATE, *, context: int = 192) -> dict[str, Any]:
    """Choices of a run that starts from a tiny model in a folder, whose tokenizer has this chat template."""
    words = ["You play tic-tac-toe as X. Reply with <move>n</move>.", *(f"<move>{n}</move>" for n in range(1, 10))] * 8
    tokenizer = build_tokenizer(words, context=context)
    model = build_model(tokenizer, ModelChoice(context=context, architecture="llama"), seed=5)
    tokenizer.chat_template = chat_template
    save_model(model, tokenizer, folder)
    return {"recipe": "grpo", "model": {"source": "base", "base": str(folder)}}


REWRITES = CHAT_TEMPLATE.replace(
    "message['content'] + '<|end|>' }}{% endgen", "_CONTENT + '<|end|>' }}{% endgen"
).replace("_CONTENT", "(message['content'] if loop.last else 'earlier') ")
"""As templates do that drop the reasoning of earlier turns."""
ENDLESS = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}{% endfor %}"
ENDLESS += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
THINKING = CHAT_TEMPLATE.replace(
    "add_generation_prompt %}{{- '<|assistant|>'", "add_generation_prompt %}{{- '<|assistant|><think>'"
)
THINKING = THINKING.replace("'system' %}", "'system' %}{{ raise_exception('no system role') }}")


@pytest.mark.parametrize(
    ("chat_template", "told"),
    [
        (REWRITES, "does not write all messages"),
        (ENDLESS, "does not end the assistant's turn with a special token"),
        (None, "the tokenizer has no chat template"),
    ],
)
def test_a_chat_template_that_cannot_carry_a_conversation_ends_the_scan(
    installation: None, tmp_path: Path, chat_template: str | None, told: str
):
    preflight = look_here(new_preflight(**base_in(tmp_path / "base", chat_template)))
    found = findings_of(preflight)
    assert (preflight.status, preflight.reason) == (PreflightStatus.COMPLETED, None)
    assert found["model"]["status"] == "ok"
    assert found["chat_template"]["status"] == "problem"
    assert told in found["chat_template"]["sentence"]
    assert "instruct model" in found["chat_template"]["advice"]
    assert "base_success" not in found


def test_what_a_chat_template_cannot_do_is_reported_with_what_is_done_instead(installation: None, tmp_path: Path):
    found = findings_of(look_here(new_preflight(**base_in(tmp_path / "base", THINKING))))
    template = found["chat_template"]
    assert template["status"] == "warning"
    assert "no system role, so the system prompt is put before the first message" in template["sentence"]
    assert "Set agent.reasoning to think" in template["advice"]
    assert found["base_success"]["evidence"]["attempts"] == 32 * 4


def test_without_a_script_the_policys_own_episodes_show_how_long_conversations_are(installation: None, tmp_path: Path):
    files = built_in("tictactoe")
    files["openenv.yaml"] = re.sub(r"(?m)^  scripts: .*\n", "", files["openenv.yaml"])
    found = findings_of(look_here(new_preflight(files, **base_in(tmp_path / "base"))))
    assert "script" not in found
    assert "conversations of the policy before training" in found["conversation"]["sentence"]
    assert 0 < found["conversation"]["evidence"]["longest"] <= found["conversation"]["evidence"]["context"] == 192


def test_a_script_that_cannot_be_played_stays_a_problem_next_to_the_policys_episodes(
    installation: None, tmp_path: Path
):
    files = built_in("tictactoe")
    files["openenv.yaml"] = re.sub(r"(?m)^  scripts: .*$", "  scripts: [nobody]", files["openenv.yaml"])
    found = findings_of(look_here(new_preflight(files, **base_in(tmp_path / "base"))))
    assert found["conversation"]["status"] == "problem"
    assert "The scripted policy could not be played" in found["conversation"]["sentence"]
    assert found["base_success"]["evidence"]["attempts"] == 32 * 4
    assert found["time"]["evidence"]["seconds"] > 0


def test_a_pre_flight_that_was_given_up_says_so(installation: None):
    preflight_id = new_preflight()
    with transaction() as session:
        give_up_preflight(session, JobContext(uuid.uuid4(), None, {"preflight_id": str(preflight_id)}, 1), "no memory")
    with transaction() as session:
        preflight = session.get_one(Preflight, preflight_id)
    assert (preflight.status, preflight.reason) == (PreflightStatus.FAILED, "no memory")


def test_an_unknown_pre_flight_ends_badly(installation: None):
    with pytest.raises(NoResultFound):
        run_preflight(uuid.uuid4())
