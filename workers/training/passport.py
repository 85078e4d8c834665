"""Issue the passport of an export: reload its files in a separate process, compare and evaluate them again.

`python -m workers.training.passport <request.json>` writes `passport.json` next to the request.
"""

import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import peft
import torch
import transformers
from pydantic_core import to_jsonable_python
from sqlalchemy import select
from sqlalchemy.orm import undefer
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import paired_difference
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import ExportForm, Phase, RolloutStatus, Split
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from workers.models.load import LoadedModel, ModelUnusable, load_folder, record_of
from workers.models.policy import LocalPolicy
from workers.storage.digests import digest_of
from workers.training.assignment import Assignment, read_assignment
from workers.training.checkpoints import CheckpointStore
from workers.training.curriculum import single_plans
from workers.training.env_pool import open_env_pool
from workers.training.exporting.comparison import PROBES, compare_merge, likeness, random_probes, tolerance_of
from workers.training.exporting.files import MERGED_FORMS, read_export
from workers.training.heldout_evaluation import HeldoutEvaluation, summarize

REWARD_TOLERANCE = 0.02
"""The mean held-out reward may differ by this much, or by less than the paired interval can distinguish from 0."""


@dataclass(frozen=True, slots=True)
class PassportRequest:
    export: str  # folder of the exported files
    original: str  # folder of the checkpoint's files
    checkpoint_id: str
    files: dict[str, str]  # SHA-256 of each exported file, by name
    form: ExportForm = ExportForm.FULL
    dtype: str = "float32"  # precision of the files


@dataclass(slots=True)
class Passport:
    passed: bool = False
    reason: str | None = None  # why it did not pass
    files: dict[str, str] = field(default_factory=dict)
    likeness: dict[str, object] = field(default_factory=dict)
    """Differences of its predictions from the trained policy's, and the tolerance."""
    weights: dict[str, object] = field(default_factory=dict)
    """Merged exports only: distance of each weight from the base's plus the adapter's."""
    heldout: dict[str, object] = field(default_factory=dict)
    """{before, after, difference, tasks}: held-out evaluations of the checkpoint and of the reloaded export."""
    issued_at: str = ""
    versions: dict[str, str] = field(default_factory=dict)


class NotVerified(Exception):
    """The exported files are not the checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointResults:
    """Results of a checkpoint on the held-out tasks of its run."""

    figures: Mapping[str, object]  # in the format of the checkpoint's row
    rewards: Mapping[int, float]  # by the place of the task in the evaluation
    training_step: int | None  # the training step that seeded its episodes
    conversations: Sequence[Sequence[int]] = field(default=(), repr=False)  # some whole conversations, as tokens


def issue(request: PassportRequest) -> Passport:
    """Verify an export. A failure is a passport that states the reason."""
    versions = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }
    passport = Passport(files=request.files, issued_at=datetime.now(UTC).isoformat(), versions=versions)
    try:
        _verify(request, passport)
    except (NotVerified, ModelUnusable) as error:
        passport.reason = str(error)
    else:
        passport.passed = True
    return passport


def _verify(request: PassportRequest, passport: Passport) -> None:
    """Fill the passport step by step. Raises NotVerified or ModelUnusable."""
    export, original, form = Path(request.export), Path(request.original), ExportForm(request.form)
    if changed := [name for name, digest in request.files.items() if digest_of(export / name) != digest]:
        raise NotVerified(f"files changed after they were written: {', '.join(changed)}")
    exported, tokenizer = read_export(export, form, original)
    checkpoint, known_tokenizer = load_folder(original)
    if tokenizer.get_vocab() != known_tokenizer.get_vocab() or tokenizer.chat_template != known_tokenizer.chat_template:
        raise NotVerified("the exported tokenizer is not the checkpoint's")
    if form in MERGED_FORMS:
        weights = compare_merge(exported, original, is_rounded=form is ExportForm.MERGED_DEQUANTISED)
        passport.weights = asdict(weights)
        if problem := weights.problem():
            raise NotVerified(f"the adapter was not merged correctly: {problem}")
    with transaction() as session:
        row = session.get_one(Checkpoint, uuid.UUID(request.checkpoint_id))
    assert row.run_id is not None
    assignment = read_assignment(row.run_id)
    torch.set_num_threads(assignment.configuration.threads)
    before = results_of(assignment, row, checkpoint, known_tokenizer)
    predictions = likeness(exported, checkpoint, before.conversations or random_probes(len(tokenizer)))
    record = record_of(checkpoint)
    is_other_base = form in {ExportForm.MERGED, ExportForm.GGUF} and record is not None and bool(record.quantisation)
    allowed = tolerance_of(predictions.dtype, request.dtype, is_other_base=is_other_base)
    passport.likeness = {**predictions.as_json(), "allowed": asdict(allowed)}
    if problem := predictions.problem(allowed):
        hint = ". The form merged_dequantised keeps the base that it was trained on" if is_other_base else ""
        raise NotVerified(f"the reloaded model is not the checkpoint: {problem}{hint}")
    rollouts, evaluation = _evaluate(assignment, exported, tokenizer, before.training_step)
    rewards = {rollout.group: rollout.reward for rollout in rollouts if rollout.reward is not None}
    common = sorted(before.rewards.keys() & rewards.keys())
    difference = paired_difference([before.rewards[task] for task in common], [rewards[task] for task in common])
    if difference and abs(difference.mean) > REWARD_TOLERANCE and difference.excludes_zero:
        raise NotVerified(
            f"the held-out reward of the reloaded model differs by {difference.mean:+.3f} "
            f"({difference.low:+.3f} to {difference.high:+.3f}) from the checkpoint's"
        )
    passport.heldout = {
        "tasks": len(rewards),
        "before": before.figures,
        "after": to_jsonable_python(evaluation),
        "difference": asdict(difference) if difference else None,
    }


def results_of(
    assignment: Assignment, checkpoint: Checkpoint, model: LoadedModel, tokenizer: PreTrainedTokenizerBase
) -> CheckpointResults:
    """The held-out evaluation of a checkpoint, from the rollouts that its run stored.

    If the run stored none, the checkpoint is evaluated now: it was saved when the run was paused or stopped, or is one
    of several warm-up checkpoints. If it had no result, it has one from now on.
    """
    match Stage(checkpoint.stage):
        case Stage.GRPO | Stage.ROUND | Stage.DPO:
            step: int | None = checkpoint.step
        case Stage.SFT:
            step = 0
        case Stage.UNTRAINED:  # evaluated before any step, if the warm-up is evaluated at step 0 of GRPO
            step = None if assignment.configuration.recipe.has_sft else 0
    if checkpoint.heldout and checkpoint.heldout.get("training_step") == step:
        of_evaluation = (
            RolloutRow.run_id == checkpoint.run_id,
            RolloutRow.phase == Phase.HELDOUT,
            RolloutRow.training_step.is_not_distinct_from(step),
        )
        places = select(Group.ordinal, RolloutRow.reward).join(Group, Group.id == RolloutRow.group_id)
        conversations = (
            select(RolloutRow)
            .options(undefer(RolloutRow.tokens))
            .where(*of_evaluation, RolloutRow.tokens.is_not(None))
            .order_by(RolloutRow.seq)
            .limit(PROBES)
        )
        with transaction() as session:
            stored = session.execute(places.where(*of_evaluation, RolloutRow.status == RolloutStatus.COMPLETED))
            rewards = {place: reward for place, reward in stored if reward is not None}
            kept = [row.tokens or {} for row in session.scalars(conversations)] if rewards else []
        if rewards:
            tokens = [each["prompt"] + each["completion"] for each in kept if each.get("completion")]
            return CheckpointResults(checkpoint.heldout, rewards, step, tokens)
    rollouts, evaluation = _evaluate(assignment, model, tokenizer, step)
    if not checkpoint.heldout:
        store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
        store.set_heldout(Stage(checkpoint.stage), checkpoint.step, evaluation, at=None)
    tokens = [
        (each.prompt_token_ids or []) + each.completion_token_ids for each in rollouts if each.completion_token_ids
    ]
    rewards = {rollout.group: rollout.reward for rollout in rollouts if rollout.reward is not None}
    return CheckpointResults(checkpoint.heldout or to_jsonable_python(evaluation), rewards, step, tokens[:PROBES])


def _evaluate(
    assignment: Assignment, model: LoadedModel, tokenizer: PreTrainedTokenizerBase, training_step: int | None
) -> tuple[list[Rollout], HeldoutEvaluation]:
    """Repeat the run's held-out evaluation with the same tasks and seeds. Stores nothing."""
    configuration = assignment.configuration
    plans = single_plans(assignment.envs, configuration.heldout.tasks, Split.HELDOUT)
    policy = LocalPolicy(model, tokenizer, temperature=configuration.heldout.temperature, lockstep=True)
    with open_env_pool(assignment.envs, assignment.configuration) as env_pool:
        rollouts = env_pool.play_in_lockstep(
            plans, policy, phase=Phase.HELDOUT, seed=configuration.seed, training_step=training_step
        )
        env_pool.close_policy(policy)
    return rollouts, summarize(rollouts, [column.name for column in assignment.columns], assignment.envs)


def main() -> int:
    configure_logging("passport")
    disable_progress_bar()
    request = Path(sys.argv[1])
    passport = issue(PassportRequest(**json.loads(request.read_text())))
    request.with_name("passport.json").write_text(json.dumps(asdict(passport), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
