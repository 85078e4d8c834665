"""The model card of an export: its weights, training, results, safeguards and verification, as Markdown."""

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.checkpoints.exports import REPOSITORY
from backend.domain.checkpoints.transfer import PairedFigure, TransferReport
from backend.domain.environments.manifest import Manifest
from backend.domain.training.adapter import AdapterRecord, public_name
from backend.domain.training.configuration import STEPPED, Recipe, TrainingConfiguration
from backend.domain.vocabulary import ExportForm, Phase, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.review.safeguards import Safeguards, safeguards_of
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from workers.training.exporting.files import ExportDescription

MAX_EVALUATIONS = 12
_WHOLE = (
    "A causal language model",
    "`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load the folder.",
)
_FORMS = {
    ExportForm.ADAPTER: (
        "A LoRA adapter for a causal language model,",
        "On another base, or the same base in another precision, it is a different policy; `peft` does not check that.",
    ),
    ExportForm.GGUF: ("A causal language model as GGUF,", "llama.cpp loads the `.gguf` file without the others."),
}
"""First words of the card, and how to load the files."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Everything that the card reports about a checkpoint, read at one moment."""

    checkpoint: Checkpoint
    run: Run
    environment: str
    version: EnvironmentVersion
    manifest: Manifest
    configuration: TrainingConfiguration
    checkpoints: Sequence[Checkpoint]  # evaluated checkpoints of the run, in order
    rollouts: Mapping[str, int]  # number of episodes by phase
    evaluations: Sequence[tuple[str, Mapping[str, float]]]
    """Policy and reward of finished evaluations on the same version, newest first."""
    safeguards: Safeguards


def read_facts(checkpoint_id: uuid.UUID) -> CardFacts:
    with transaction() as session:
        checkpoint = session.get_one(Checkpoint, checkpoint_id, options=[joinedload(Checkpoint.policy)])
        run = session.get_one(Run, checkpoint.run_id)
        version = session.get_one(EnvironmentVersion, run.version_id)
        evaluated = Checkpoint.run_id == run.id, Checkpoint.heldout_reward.is_not(None)
        counts = select(RolloutRow.phase, func.count()).where(RolloutRow.run_id == run.id).group_by(RolloutRow.phase)
        evaluations = (
            select(Policy.name, Run.summary)
            .join(Policy, Policy.id == Run.policy_id)
            .where(Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED, Run.version_id == run.version_id)
            .order_by(Run.created_at.desc())
            .limit(MAX_EVALUATIONS)
        )
        return CardFacts(
            checkpoint=checkpoint,
            run=run,
            environment=session.get_one(Environment, version.environment_id).name,
            version=version,
            manifest=Manifest.model_validate(version.manifest),
            configuration=TrainingConfiguration.of_run(run.configuration),
            checkpoints=session.scalars(select(Checkpoint).where(*evaluated).order_by(Checkpoint.created_at)).all(),
            rollouts={str(phase): count for phase, count in session.execute(counts)},
            evaluations=[
                (name, summary["reward"]) for name, summary in session.execute(evaluations) if summary.get("reward")
            ],
            safeguards=safeguards_of(session, run.id),
        )


def write_card(
    facts: CardFacts,
    description: ExportDescription,
    passport: Mapping[str, object],
    transfer: TransferReport | None = None,
) -> str:
    """The card as Markdown, with the front matter that model hubs read."""
    form, written, licence = description.form, description.written, description.licence
    model, record = facts.configuration.model, None
    if facts.checkpoint.adapter is not None:
        record = AdapterRecord.model_validate(facts.checkpoint.adapter)
    base = public_name(record.base) if record else public_name(model.base) if model.source == "base" else ""
    base = base if re.fullmatch(REPOSITORY, base) else ""  # only names that a hub knows
    relation = "adapter" if form is ExportForm.ADAPTER else "finetune"
    weights: list[tuple[str, str]] = []
    if record is not None:
        precision = "quantized to 4 bits (NF4)" if record.quantisation else f"in {record.dtype}"
        weights = [
            ("Base model", f"`{public_name(record.base)}`, revision `{record.revision or 'not pinned'}`"),
            ("Base during training", precision),
            ("Adapter", f"LoRA, rank {record.rank}, alpha {record.alpha:g}, on {', '.join(record.targets)}"),
        ]
        if form is not ExportForm.ADAPTER:
            quantized = form is ExportForm.MERGED_DEQUANTISED
            weights.append(("Merged into", "the base as used in training" if quantized else "the original base"))
    if written.label:
        weights.append(("Note", written.label))
    weights.append(("License", licence or "not given: ask the author, and check the license of the base model"))
    first_words, loading = _FORMS.get(form, _WHOLE)
    return "\n".join(
        [
            "---",
            f"library_name: {'peft' if form is ExportForm.ADAPTER else 'transformers'}",
            f"license: {licence or 'other'}",
            *([] if licence else ["license_name: not-given"]),
            *([f"base_model: {base}", f"base_model_relation: {relation}"] if base else []),
            "pipeline_tag: text-generation",
            f"tags: [reinforcement-learning, {facts.environment}]",
            "---",
            "",
            f"# {facts.checkpoint.policy.name}",
            "",
            f"{first_words} of {written.parameters:,} parameters in {written.dtype}, trained with Proctor on the "
            f"environment `{facts.environment}` (version {facts.version.number}).",
            "",
            *("## Weights", "", *table(("", ""), weights), ""),
            "## Use",
            "",
            f'`python inference.py "…"` starts a chat, for every form of export. {loading}',
            "",
            "The chat template ends every message with the end-of-sequence token. The policy was trained with this "
            "system message:",
            "",
            f"> {facts.manifest.proctor.agent.system.replace(chr(10), ' ')}",
            "",
            "Trained on this task only. Do not expect useful output on other prompts.",
            "",
            *_training(facts),
            *_results(facts),
            *(transfer_section(transfer) if transfer else []),
            *safeguards_section(facts.safeguards, sum(facts.rollouts.values())),
            *_passport(passport),
            "",
        ]
    )


def _training(facts: CardFacts) -> list[str]:
    configuration, played = facts.configuration, facts.rollouts
    model, sft, grpo = configuration.model, configuration.sft, configuration.grpo
    starts = {"base": f"`{public_name(model.base)}`", "checkpoint": f"checkpoint `{model.checkpoint}`"}
    rows = [
        (
            "Environment",
            f"`{facts.environment}` version {facts.version.number}, SHA-256 `{facts.version.content_hash}`",
        ),
        ("Run", f"{facts.run.name} (`{facts.run.id}`)"),
        ("Checkpoint", f"{facts.checkpoint.stage}, step {facts.checkpoint.step}"),
        ("Initial weights", starts.get(model.source, f"from scratch ({model.architecture}, {model.size})")),
    ]
    if configuration.mix:
        rows.append(("Also trained on", ", ".join(str(each) for each in configuration.mix)))
    rows.append(("Seed", str(configuration.seed)))
    if configuration.recipe.has_sft:
        sources = {
            "script": f"scripted policy `{sft.script}`",
            "rollouts": "stored rollouts",
            "file": f"uploaded conversations `{sft.file}`",
            "demonstrations": "episodes marked by people",
        }
        used = [(sources[source], share) for source, share in sft.shares.items() if share > 0]
        data = used[0][0] if len(used) == 1 else ", ".join(f"{share:.0%} {source}" for source, share in used)
        rows.append(("SFT data", f"{data}, {played.get(Phase.WARM_UP, 0):,} episodes, {sft.steps} steps"))
    if configuration.recipe.has_grpo:
        episodes = f"{played.get(Phase.TRAIN, 0):,} episodes"
        rows.append(("GRPO data", f"{grpo.steps} steps planned, {episodes}, loss {grpo.loss_type}"))
    if configuration.recipe is Recipe.DISTILLATION:
        teacher = configuration.distillation
        name = f"`{public_name(teacher.base)}`" if teacher.teacher == "base" else teacher.described
        rows.append(("Teacher", name))
    if configuration.recipe is Recipe.REJECTION_SAMPLING:
        rejection, episodes = configuration.rejection, f"{played.get(Phase.TRAIN, 0):,} episodes"
        kept = f"the best {rejection.keep} of {rejection.samples} per task"
        rows.append(("Rejection sampling", f"{rejection.rounds} rounds planned, {episodes}, {kept}"))
    rows.append(("Reward", ", ".join(f"{column.name} × {column.weight:g}" for column in facts.manifest.columns)))
    return ["## Training", "", *table(("", ""), rows), ""]


def _results(facts: CardFacts) -> list[str]:
    """Results before and after training on the same held-out tasks, then evaluations on the same version."""
    columns = facts.manifest.column_names
    rows = []
    for checkpoint in facts.checkpoints:
        is_exported = checkpoint.id == facts.checkpoint.id
        if checkpoint.stage in STEPPED and not checkpoint.is_best and not is_exported:
            continue
        values = checkpoint.heldout.get("columns", {})
        name = f"{checkpoint.stage} {checkpoint.step}{' (this checkpoint)' if is_exported else ''}"
        means = [f"{values[column]['mean']:.3f}" if column in values else "–" for column in columns]
        rows.append((name, _interval(checkpoint.heldout["reward"]), *means))
    lines = ["## Results", ""]
    if rows:
        count = (facts.checkpoint.heldout.get("reward") or {}).get("count", 0)
        lines += [f"On {count} held-out tasks, the same for every row:", ""]
        lines += [*table(("Checkpoint", "Reward (95% CI)", *columns), rows), ""]
    if facts.evaluations:
        evaluated = [(name, str(reward["count"]), _interval(reward)) for name, reward in facts.evaluations]
        lines += ["Evaluations on the same environment version, newest first:", ""]
        lines += [*table(("Policy", "Tasks", "Reward (95% CI)"), evaluated), ""]
    return lines


def transfer_section(report: TransferReport) -> list[str]:
    """The results of a transfer report by environment, and everything that was not played."""
    rewards, traps = [], []
    for each in report.environments:
        name = f"`{each.name}` v{each.version}{' (trained on it)' if each.is_trained else ''}"
        if each.reward is None:
            rewards.append((name, each.status.replace("_", " "), *["–"] * 5))
            continue
        figures = [_change(each.reward), _change(each.normalized), _change(each.success)]
        power = "–" if each.power is None else f"{each.power:.2f} for {each.detect:.3g}"
        rewards.append((name, each.verdict, *figures, f"{each.compared:,}", power))
        for what, rate in each.rates:
            counts = [f"{side.found:,} of {side.looked_at:,}" for side in (rate.before, rate.after)]
            change = "–" if rate.change is None else f"{rate.change:+.1%} ({rate.low:+.1%} to {rate.high:+.1%})"
            traps.append((name, what, *counts, change))
    lines = [
        "## Transfer",
        "",
        f"{report.exported.name} compared with {report.reference.name} on the same tasks and seeds, with 95% intervals "
        "of the paired differences. Intervals are not corrected for the number of environments. `transfer.json` lists "
        "all figures and the evaluations.",
        "",
        *(line for warning in report.warnings for line in (f"**{warning}**", "")),
        *table(("Environment", "Verdict", "Reward", "Normalized", "Success", "Tasks", "Power"), rewards),
        "",
    ]
    if traps:
        lines += [*table(("Environment", "Rollouts", "Before", "After", "Change (95% CI)"), traps), ""]
    notes = [f"- {each.title}: {each.reason}" for each in report.environments if each.reason]
    notes += [f"- {report.reason}"] if report.reason else []
    return [*lines, *notes, *([""] if notes else [])]


def _change(figure: PairedFigure | None) -> str:
    if figure is None:
        return "–"
    change = figure.difference
    means = f"{figure.before.mean:.3f} → {figure.after.mean:.3f}"
    return f"{means}, {change.mean:+.3f} ({change.low:+.3f} to {change.high:+.3f})"


def safeguards_section(report: Safeguards, episodes: int) -> list[str]:
    """A summary of the run's safeguards report. `episodes`: number of episodes of the run."""
    certificate, audit, reward = report.certificate, report.audit, report.reward
    certified = "none: the environment's checks were never run"
    if certificate is not None:
        certified = f"{certificate.status} ({certificate.passed} of {certificate.total} checks passed)"
    if report.without_certificate:
        certified += f"; trained without a passing certificate: {report.without_certificate}"
    audited = f"{audit.drawn:,} sampled, none reviewed: the rate of missed hacks is unknown"
    if audit.looked_at:
        rate = f"{audit.rate_low:.1%} to {audit.rate_high:.1%}"
        audited = f"{audit.hacks:,} hacks in {audit.looked_at:,} of {audit.unflagged:,} (95% CI: {rate})"
    judged = "no episode was reviewed"
    if reward is not None:
        interval = "no interval" if reward.low is None else f"{reward.low:.3f} to {reward.high:.3f}"
        judged = f"{reward.judged:.3f} ({interval}) at step {reward.step}; the training reward is {reward.trained:.3f}"
    efforts = []
    for score in report.efforts:
        result = f"{score.checkpoint}: {score.outcome or score.status}"
        if score.difference is not None and score.low is not None:
            result += f", area {score.difference:+.3f} ({score.low:.3f} to {score.high:.3f}) against {score.base}"
        efforts.append(f"{result}, {score.ended_at or score.asked_at:%Y-%m-%d}")
    rows = [
        ("Environment certificate", certified),
        ("Regression fixtures", f"{report.fixtures_hack} hacks, {report.fixtures_honest} honest"),
        ("Detectors", ", ".join(sorted(report.watching)) or "none"),
        ("Flags", _counted({each.id: each.flags for each in report.detectors})),
        ("Confirmed flags", _counted({each.id: each.confirmed for each in report.detectors if each.confirmed})),
        (
            "Columns that reward surface",
            ", ".join(f"{each.column} for {each.family} ({each.share:.0%})" for each in report.columns) or "none",
        ),
        ("Verdicts", _counted(report.verdicts)),
        ("Reviewed", f"{sum(report.verdicts.values()):,} of {episodes:,} episodes"),
        ("Random audit sample of unflagged episodes", audited),
        ("Training reward after verdicts", judged),
        ("Effort scores", "; ".join(efforts) or "none"),
        ("Interventions", _counted(Counter(f"{each.name} ({each.action})" for each in report.interventions))),
        ("Changed during training", ", ".join(each.name for each in report.changes) or "nothing"),
    ]
    return [
        "## Safeguards",
        "",
        "How the reward was protected against hacking. Detectors ran on every training step. A flag is a suspicion; a",
        "verdict is a person's decision. None of this shows how the policy behaves outside this environment.",
        "",
        *table(("", ""), rows),
        "",
    ]


def _passport(passport: Mapping[str, object]) -> list[str]:
    likeness, heldout, weights = passport["likeness"], passport["heldout"], passport.get("weights")
    assert isinstance(likeness, dict)
    assert isinstance(heldout, dict)
    rows = [
        ("Largest logit difference", f"{likeness['max_logit_difference']:.3g}"),
        ("Divergence per token (nats)", f"{likeness['mean_divergence']:.3g}"),
        ("Same most likely token", f"{likeness['argmax_agreement']:.2%} of {likeness['tokens']:,} tokens"),
    ]
    if isinstance(weights, dict) and weights:
        distance = f"at most {weights['largest_roundings']:.2g} rounding errors on {weights['adapted']} weights"
        rows.append(("Weights compared with base plus adapter", f"{distance}; {weights['kept']} others equal the base"))
    if after := heldout.get("after", {}).get("reward"):
        rows.append(("Held-out reward of the reloaded files", _interval(after)))
    if difference := heldout.get("difference"):
        rows.append(("Difference from the checkpoint", f"{difference['mean']:+.4f} on {difference['count']} tasks"))
    return [
        "## Passport",
        "",
        "These files were reloaded in a separate process, compared with the checkpoint, and evaluated again on the "
        f"held-out tasks ({passport['issued_at']}). `manifest.json` lists the SHA-256 of each file.",
        "",
        *table(("", ""), rows),
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, line by line."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _interval(estimate: Mapping[str, float] | None) -> str:
    return f"{estimate['mean']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})" if estimate else "–"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
