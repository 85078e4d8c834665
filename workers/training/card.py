"""The model card of an export: what it was trained on, what that brought, and who looked at it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backend.domain.training.adapter import AdapterRecord, public_name
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.exports import REPOSITORY
from backend.domain.training.warm_up import SftChoice
from backend.domain.vocabulary import ExportForm, Phase
from backend.judging.reports.safeguards import AuditTold, RewardTold
from workers.training.exporting.facts import CardFacts
from workers.training.exporting.manifest import About

_WHAT = {
    ExportForm.FULL: "A causal language model",
    ExportForm.ADAPTER: "An adapter (LoRA) for a causal language model,",
    ExportForm.MERGED: "A causal language model",
    ExportForm.MERGED_DEQUANTISED: "A causal language model",
    ExportForm.GGUF: "A causal language model as GGUF,",
}
_SAFEGUARDS = [
    "What was done so that the reward means what it says. Detectors look at every step of training; a flag is a",
    "suspicion, a verdict is a person's word. None of it shows what the policy does outside of this environment.",
]
_FOLDER = "`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load the folder."
_LOADING = {
    ExportForm.FULL: _FOLDER,
    ExportForm.ADAPTER: (
        "Beside another base, or the same base in another precision, it is another policy: `peft` does not check that."
    ),
    ExportForm.MERGED: _FOLDER,
    ExportForm.MERGED_DEQUANTISED: _FOLDER,
    ExportForm.GGUF: "llama.cpp loads the `.gguf` file by itself.",
}


def write_card(facts: CardFacts, about: About, passport: Mapping[str, Any]) -> str:
    """Markdown with the front matter that model hubs read."""
    return "\n".join(
        [
            *_front_matter(facts, about),
            f"# {facts.policy}",
            "",
            f"{_WHAT[about.form]} of {about.written.parameters:,} parameters in {about.written.dtype}, trained by "
            f"Proctor on the environment `{facts.environment}` (version {facts.version}).",
            "",
            *_weights(facts, about),
            *_use(facts, about),
            *_training(facts),
            *_results(facts),
            *_safeguards(facts),
            *_passport(passport),
            "",
        ]
    )


def _front_matter(facts: CardFacts, about: About) -> list[str]:
    base = _public_base(facts)
    relation = "adapter" if about.form is ExportForm.ADAPTER else "finetune"
    return [
        "---",
        "library_name: peft" if about.form is ExportForm.ADAPTER else "library_name: transformers",
        f"license: {about.licence or 'other'}",
        *([] if about.licence else ["license_name: not-given"]),
        *([f"base_model: {base}", f"base_model_relation: {relation}"] if base else []),
        "pipeline_tag: text-generation",
        f"tags: [reinforcement-learning, {facts.environment}]",
        "---",
        "",
    ]


def _weights(facts: CardFacts, about: About) -> list[str]:
    """What the weights are made of; nothing for a model whose weights were all trained here."""
    rows = []
    if facts.checkpoint.adapter is not None:
        record = AdapterRecord.model_validate(facts.checkpoint.adapter)
        trained = "rounded to 4 bits (NF4)" if record.quantisation else f"in {record.dtype}"
        rows = [
            ("base", f"`{record.public_base}`, revision `{record.revision or 'not pinned'}`"),
            ("trained beside the base", trained),
            ("adapter", f"LoRA, rank {record.rank}, alpha {record.alpha:g}, on {', '.join(record.targets)}"),
        ]
        if about.form is not ExportForm.ADAPTER:
            kept = "as it was trained beside" if about.form is ExportForm.MERGED_DEQUANTISED else "the original"
            rows.append(("merged into", f"{kept} base"))
    if about.written.label:
        rows.append(("note", about.written.label))
    rows.append(("licence", about.licence or "not given: ask whoever trained it, and mind the base's"))
    return ["## Weights", "", *_table(("", ""), rows), ""]


def _public_base(facts: CardFacts) -> str | None:
    """Only a name that a hub knows."""
    if facts.checkpoint.adapter is None:
        model = facts.configuration.model
        name = public_name(model.base) if model.source == "base" else ""
    else:
        name = AdapterRecord.model_validate(facts.checkpoint.adapter).public_base
    return name if re.fullmatch(REPOSITORY, name) else None


def _use(facts: CardFacts, about: About) -> list[str]:
    system = facts.manifest.proctor.agent.system.replace("\n", " ")
    return [
        "## Use",
        "",
        '`python inference.py "…"` talks with it, for every form of export; `manifest.json` says what the form is. '
        + _LOADING[about.form],
        "",
        "The chat template ends every message with the end-of-sequence token. It was trained with this system message:",
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
        *([("also trained on", ", ".join(str(each) for each in configuration.mix))] if configuration.mix else []),
        ("seed", str(configuration.seed)),
    ]
    if configuration.recipe.has_sft:
        sft = configuration.sft
        told = f"{_imitated(sft)}, {played.get(Phase.WARM_UP, 0):,} episodes, {sft.steps} steps"
        rows.append(("imitation data", told))
    if configuration.recipe.has_grpo:
        grpo = configuration.grpo
        told = f"{grpo.steps} steps planned, {played.get(Phase.TRAIN, 0):,} episodes, loss {grpo.loss_type}"
        rows.append(("reinforcement data", told))
    columns = ", ".join(f"{column.name} × {column.weight:g}" for column in facts.manifest.columns)
    return ["## Training", "", *_table(("", ""), [*rows, ("reward", columns)]), ""]


def _imitated(sft: SftChoice) -> str:
    names = {
        "script": f"script `{sft.script}`",
        "rollouts": "stored rollouts",
        "file": f"uploaded conversations `{sft.file}`",
        "demonstrations": "episodes that people marked",
    }
    used = [(names[source], share) for source, share in sft.shares.items() if share > 0]
    return used[0][0] if len(used) == 1 else ", ".join(f"{share:.0%} {name}" for name, share in used)


def _start(configuration: TrainingConfiguration) -> str:
    model = configuration.model
    match model.source:
        case "base":
            return f"`{public_name(model.base)}`"
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
    """The run's safeguards report, in short."""
    report = facts.safeguards
    certificate = report.certificate
    if certificate is None:
        told = "none: the environment's reward was never checked"
    else:
        told = f"{certificate.status} ({certificate.passed} of {certificate.total} checks passed)"
    if report.without_certificate:
        told += f"; trained without a passing one: {report.without_certificate}"
    rows = [
        ("environment certificate", told),
        ("judged episodes it replays", f"{report.fixtures_hack} hacks, {report.fixtures_honest} honest"),
        ("detectors that watched", ", ".join(sorted(report.watching)) or "none"),
        ("flags by detectors", _counted({each.id: each.flags for each in report.detectors})),
        ("flags that people confirmed", _counted({e.id: e.confirmed for e in report.detectors if e.confirmed})),
        ("verdicts by people", _counted(report.verdicts)),
        ("looked at by people", f"{sum(report.verdicts.values()):,} of {sum(facts.rollouts.values()):,} episodes"),
        ("blind sample of unflagged episodes", _audit(report.audit)),
        ("training reward as judged", _as_judged(report.reward)),
        ("interventions", _counted(Counter(f"{each.name} ({each.action})" for each in report.interventions))),
        ("changed while it trained", ", ".join(each.name for each in report.changes) or "nothing"),
    ]
    return ["## Safeguards", "", *_SAFEGUARDS, "", *_table(("", ""), rows), ""]


def _audit(audit: AuditTold) -> str:
    if not audit.looked_at:
        return f"{audit.drawn:,} drawn, none looked at: what was missed is unknown"
    rate = f"{audit.rate_low:.1%} to {audit.rate_high:.1%}"
    return f"{audit.hacks:,} hacks in {audit.looked_at:,} of {audit.unflagged:,} (95 %: {rate})"


def _as_judged(reward: RewardTold | None) -> str:
    if reward is None:
        return "nobody judged an episode"
    limits = "no interval" if reward.low is None else f"{reward.low:.3f} to {reward.high:.3f}"
    return f"{reward.judged:.3f} ({limits}) at step {reward.step}, {reward.trained:.3f} as trained"


def _passport(passport: Mapping[str, Any]) -> list[str]:
    like, heldout = passport["likeness"], passport["heldout"]
    rows = [
        ("largest difference of logits", f"{like['max_logit_difference']:.3g}"),
        ("divergence a token (nats)", f"{like['mean_divergence']:.3g}"),
        ("likeliest token agrees", f"{like['argmax_agreement']:.2%} of {like['tokens']:,} tokens"),
    ]
    if weights := passport.get("weights"):
        told = f"{weights['largest_roundings']:.2g} roundings at most on {weights['adapted']} weights"
        rows.append(("weights, from base plus adapter", f"{told}; {weights['kept']} others are the base's"))
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
