"""An effort score of weights that really answer: the base needs its reasoning, the checkpoint earns without it."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import select

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder, put_folder
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.studies.effort import EffortOutcome
from backend.domain.training.configuration import ModelChoice
from backend.domain.vocabulary import Role, RunStatus
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.studies.operations import get_study
from backend.studies.queries import get_studied_run
from backend.studies.schemas import StartEffort
from backend.studies.service import start_effort
from backend.studies.tables import Study, StudyCheckpoint
from tests.factories import make_checkpoint, make_member
from tests.training.conftest import built_in
from workers.models.build import build_model, build_tokenizer
from workers.models.effort import ModelCompleter
from workers.models.load import load_folder
from workers.models.policy import LocalPolicy
from workers.tasks.effort_cuts import cut_side, load_side_work
from workers.tasks.evaluations import evaluate
from workers.tasks.execute import run_async
from workers.tasks.studies import advance, advance_effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]

THOUGHT = "One two three four. "
PAID = "<sentence>Silver moon, silver gleam, silver moonlight everywhere tonight.</sentence>"
UNPAID = "<sentence>No idea.</sentence>"


@pytest.fixture
def trained(new_run: Callable[..., uuid.UUID], tmp_path: Path) -> uuid.UUID:
    """The reward of `silver_words` comes from silvery words alone. Step 2 writes them regardless of its reasoning; the
    policy before GRPO only after all of its reasoning. Neither prompt states which words to use.
    """
    files = built_in("silver_words")
    files["openenv.yaml"] = files["openenv.yaml"].replace('"{{ message }}"', '"Write."')
    run_id = new_run(files)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        run.status = RunStatus.COMPLETED
        system = Manifest.model_validate(get_studied_run(session, run_id).version.manifest).proctor.agent.system
        tokenizer = build_tokenizer([system, THOUGHT, PAID, UNPAID, "Write."] * 9, context=256)
        thoughts = ["", "One ", "One two ", "One two three "]
        for stage, step, at_once in (("sft", 12, UNPAID), ("grpo", 2, PAID)):
            model = build_model(tokenizer, ModelChoice(context=256), seed=5)
            _learn(model, tokenizer, system, [(THOUGHT, PAID), *((thought, at_once) for thought in thoughts)])
            folder = tmp_path / stage
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            owner = session.get_one(Policy, run.policy_id)
            put_folder(folder, make_checkpoint(session, owner, run, stage=stage, step=step).artifact)
    return run_id


def _learn(model: Any, tokenizer: Any, system: str, replies: list[tuple[str, str]]) -> None:
    """Answer like this after such reasoning, and begin the first reply without it."""
    told = [{"role": "system", "content": system}, {"role": "user", "content": "Write."}]
    prompt = tokenizer.apply_chat_template(told, tokenize=True, return_dict=False, add_generation_prompt=True)
    end = tokenizer.eos_token_id
    rows, labels = [], []
    for place, (thought, answer) in enumerate(replies):
        before = tokenizer.encode(thought + "<sentence>", add_special_tokens=False)
        after = tokenizer.encode(answer.removeprefix("<sentence>"), add_special_tokens=False)
        rows.append([*prompt, *before, *after, end])
        labels.append([-100] * len(prompt) + (before if place == 0 else [-100] * len(before)) + [*after, end])
    longest = max(map(len, rows))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    wanted = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(80):
        optimiser.zero_grad()
        model(input_ids=ids, attention_mask=(ids != pad).long(), labels=wanted).loss.backward()
        optimiser.step()
    model.eval()


def _play(study_id: uuid.UUID, weights: Callable[[uuid.UUID], tuple[Any, Any]]) -> None:
    """The evaluations under way as their processes play them, in this one."""
    with transaction() as session:
        sides = session.scalars(select(StudyCheckpoint).where(StudyCheckpoint.study_id == study_id)).all()
    for side in sides:
        assert side.run_id is not None
        assert side.checkpoint_id is not None
        assert evaluate(side.run_id, LocalPolicy(*weights(side.checkpoint_id))) is RunStatus.COMPLETED


def test_a_checkpoint_that_earns_without_its_reasoning_is_reported_from_its_base(
    trained: uuid.UUID, tmp_path: Path
) -> None:
    def weights(checkpoint_id: uuid.UUID) -> tuple[Any, Any]:
        with transaction() as session:
            artifact = session.get_one(Checkpoint, checkpoint_id).artifact
        return load_folder(get_folder(artifact, tmp_path / str(uuid.uuid4())))

    asked = StartEffort(tasks=6, cuts=3, samples=2, temperature=0.05)
    with transaction() as session:
        author = make_member(session, Role.AUTHOR)
        study_id = start_effort(session, author, get_studied_run(session, trained), asked).id
    assert advance(study_id, advance_effort) is None, "both sides play first"
    _play(study_id, weights)
    while side_id := advance(study_id, advance_effort):
        work = load_side_work(side_id)
        assert work.side.checkpoint_id is not None
        temperature = work.plan.sampling.temperature
        run_async(cut_side(work, ModelCompleter(*weights(work.side.checkpoint_id), temperature=temperature)))
    with transaction() as session:
        study = session.get_one(Study, study_id)
        response = get_study(session, author, study)
    base, own = response.checkpoints
    assert (study.status, study.reason) == (RunStatus.COMPLETED, None)
    assert [(side.rollouts, side.succeeded, side.reasoned, len(side.replies)) for side in (base, own)] == [(6,) * 4] * 2
    assert own.curve == [1, 1, 1], "paid from the start"
    assert base.curve[0] == 0
    assert base.curve[-1] == 1, "the whole of its reasoning gives its own answer again"
    result = study.effort_result
    assert result is not None
    assert (result.outcome, result.tasks) == (EffortOutcome.SUSPICIOUS, 6)
