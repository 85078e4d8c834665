"""The model card of an export: what it was trained on, what that brought, and who looked at it."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import joinedload

from backend.db.models import Certificate, Checkpoint, Environment, EnvironmentVersion, Flag, Policy, Run, VerdictRecord
from backend.db.models import Rollout as RolloutRow
from backend.db.session import transaction
from backend.domain.manifest import Manifest
from backend.domain.training import TrainingConfiguration
from backend.domain.vocabulary import Phase, RunKind, RunStatus

MOST_EVALUATIONS = 12


@dataclass(frozen=True, slots=True)
class CardFacts:
    """All that the card says, read at one moment."""

    policy: str
    run_id: uuid.UUID
    run_name: str
    environment: str
    version: int
    content_hash: str
    manifest: Manifest
    configuration: TrainingConfiguration
    checkpoint: Checkpoint
    checkpoints: Sequence[Checkpoint]
    """The run's examined ones, in order."""
    rollouts: Mapping[str, int]
    """Episodes by phase."""
    evaluations: Sequence[tuple[str, Mapping[str, Any]]]
    """(policy, reward) of finished evaluations on the same version."""
    certificate: Certificate | None
    flags: Mapping[str, int]
    """By detector."""
    verdicts: Mapping[str, int]


def read_facts(checkpoint_id: uuid.UUID) -> CardFacts:
    with transaction() as session:
        checkpoint = session.get_one(Checkpoint, checkpoint_id, options=[joinedload(Checkpoint.policy)])
        run = session.get_one(Run, checkpoint.run_id)
        version = session.get_one(EnvironmentVersion, run.version_id)
        of_run = RolloutRow.run_id == run.id
        examined = Checkpoint.run_id == run.id, Checkpoint.heldout_reward.is_not(None)
        counts = select(RolloutRow.phase, func.count()).where(of_run).group_by(RolloutRow.phase)
        flags = select(Flag.detector, func.count()).where(Flag.run_id == run.id).group_by(Flag.detector)
        verdicts = (
            select(VerdictRecord.verdict, func.count())
            .where(VerdictRecord.run_id == run.id)
            .group_by(VerdictRecord.verdict)
        )
        evaluations = (
            select(Policy.name, Run.summary)
            .join(Policy, Policy.id == Run.policy_id)
            .where(Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED, Run.version_id == run.version_id)
            .order_by(Run.created_at.desc())
            .limit(MOST_EVALUATIONS)
        )
        return CardFacts(
            policy=checkpoint.policy.name,
            run_id=run.id,
            run_name=run.name,
            environment=session.get_one(Environment, version.environment_id).name,
            version=version.number,
            content_hash=version.content_hash,
            manifest=Manifest.model_validate(version.manifest),
            configuration=TrainingConfiguration.of_run(run.configuration),
            checkpoint=checkpoint,
            checkpoints=session.scalars(select(Checkpoint).where(*examined).order_by(Checkpoint.created_at)).all(),
            rollouts={str(phase): count for phase, count in session.execute(counts)},
            evaluations=[
                (name, summary["reward"]) for name, summary in session.execute(evaluations) if summary.get("reward")
            ],
            certificate=session.scalars(
                select(Certificate).where(Certificate.version_id == version.id).order_by(Certificate.created_at.desc())
            ).first(),
            flags={str(detector): count for detector, count in session.execute(flags)},
            verdicts={str(verdict): count for verdict, count in session.execute(verdicts)},
        )


def write_card(facts: CardFacts, passport: Mapping[str, Any], size: int) -> str:
    """Markdown with the front matter that model hubs read."""
    return "\n".join(
        [
            *_front_matter(facts),
            f"# {facts.policy}",
            "",
            f"A causal language model of {size:,} parameters, trained by Proctor on the environment "
            f"`{facts.environment}` (version {facts.version}).",
            "",
            *_use(facts),
            *_training(facts),
            *_results(facts),
            *_safeguards(facts),
            *_passport(passport),
            "",
        ]
    )


def _front_matter(facts: CardFacts) -> list[str]:
    return [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        f"tags: [reinforcement-learning, {facts.environment}]",
        "---",
        "",
    ]


def _use(facts: CardFacts) -> list[str]:
    system = facts.manifest.proctor.agent.system.replace("\n", " ")
    return [
        "## Use",
        "",
        "Load the folder with `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`; the chat "
        "template ends every message with the end-of-sequence token. It was trained with this system message:",
        "",
        f"> {system}",
        "",
        "It knows this one task. Outside of it, its text means nothing.",
        "",
    ]


def _training(facts: CardFacts) -> list[str]:
    configuration, played = facts.configuration, facts.rollouts
    rows = [
        ("environment", f"`{facts.environment}` version {facts.version}, SHA-256 `{facts.content_hash}`"),
        ("run", f"{facts.run_name} (`{facts.run_id}`)"),
        ("checkpoint", f"{facts.checkpoint.stage}, step {facts.checkpoint.step}"),
        ("start", _start(configuration)),
        ("seed", str(configuration.seed)),
    ]
    if configuration.recipe.has_sft:
        sft = configuration.sft
        told = f"script `{sft.script}`, {played.get(Phase.WARM_UP, 0):,} episodes, {sft.steps} steps"
        rows.append(("imitation data", told))
    if configuration.recipe.has_grpo:
        grpo = configuration.grpo
        told = f"{grpo.steps} steps planned, {played.get(Phase.TRAIN, 0):,} episodes, loss {grpo.loss_type}"
        rows.append(("reinforcement data", told))
    columns = ", ".join(f"{column.name} × {column.weight:g}" for column in facts.manifest.columns)
    return ["## Training", "", *_table(("", ""), [*rows, ("reward", columns)]), ""]


def _start(configuration: TrainingConfiguration) -> str:
    model = configuration.model
    match model.source:
        case "base":
            return f"`{model.base}`"
        case "checkpoint":
            return f"checkpoint `{model.checkpoint}`"
        case _:
            return f"from scratch ({model.architecture}, {model.size})"


def _results(facts: CardFacts) -> list[str]:
    """Before and after on the same held-out tasks; then what else was evaluated on the version."""
    columns = facts.manifest.column_names
    shown = [row for row in facts.checkpoints if row.stage != "grpo" or row.is_best or row.id == facts.checkpoint.id]
    rows = []
    for row in shown:
        values = row.heldout.get("columns", {})
        name = f"{row.stage} {row.step}" + (" (this one)" if row.id == facts.checkpoint.id else "")
        rows.append(
            (
                name,
                _interval(row.heldout["reward"]),
                *(f"{values[c]['mean']:.3f}" if c in values else "–" for c in columns),
            )
        )
    count = facts.checkpoint.heldout.get("reward", {}) or {}
    lines = ["## Results", ""]
    if rows:
        lines += [f"On {count.get('count', 0)} held-out tasks, the same for every row:", ""]
        lines += [*_table(("checkpoint", "reward (95 %)", *columns), rows), ""]
    if facts.evaluations:
        told = [(name, str(reward["count"]), _interval(reward)) for name, reward in facts.evaluations]
        lines += ["Evaluations on the same environment version, newest first:", ""]
        lines += [*_table(("policy", "tasks", "reward (95 %)"), told), ""]
    return lines


def _safeguards(facts: CardFacts) -> list[str]:
    certificate = facts.certificate
    if certificate is None:
        told = "none: the environment's reward was never checked"
    else:
        passed = sum(result["status"] == "passed" for result in certificate.results)
        told = f"{certificate.status} ({passed} of {len(certificate.results)} checks passed)"
    rows = [
        ("environment certificate", told),
        ("flags by detectors", _counted(facts.flags)),
        ("verdicts by people", _counted(facts.verdicts)),
    ]
    return ["## Safeguards", "", *_table(("", ""), rows), ""]


def _passport(passport: Mapping[str, Any]) -> list[str]:
    like, heldout = passport["likeness"], passport["heldout"]
    rows = [
        ("largest difference of logits", f"{like['max_logit_difference']:.3g}"),
        ("divergence a token (nats)", f"{like['mean_divergence']:.3g}"),
        ("likeliest token agrees", f"{like['argmax_agreement']:.2%} of {like['tokens']:,} tokens"),
    ]
    if after := heldout.get("after", {}).get("reward"):
        rows.append(("held-out reward of the reloaded files", _interval(after)))
    if difference := heldout.get("difference"):
        rows.append(("difference to the checkpoint", f"{difference['mean']:+.4f} on {difference['count']} tasks"))
    return [
        "## Passport",
        "",
        "These files were loaded again in a fresh process, compared with the checkpoint and examined again "
        f"({passport['issued_at']}). SHA-256 of each file: `manifest.json`.",
        "",
        *_table(("", ""), rows),
    ]


def _interval(estimate: Mapping[str, Any] | None) -> str:
    if not estimate:
        return "–"
    return f"{estimate['mean']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
