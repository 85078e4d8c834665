"""The model card of an export: what it was trained on, what that brought, and who looked at it."""

import re
from collections.abc import Mapping
from typing import Any

from backend.domain.checkpoints.exports import REPOSITORY
from backend.domain.training.adapter import AdapterRecord, public_name
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.warm_up import SftChoice
from backend.domain.vocabulary import ExportForm, Phase
from workers.training.exporting.facts import CardFacts
from workers.training.exporting.manifest import About
from workers.training.exporting.markdown import table
from workers.training.exporting.safeguards import safeguards

_WHAT = {
    ExportForm.FULL: "A causal language model",
    ExportForm.ADAPTER: "An adapter (LoRA) for a causal language model,",
    ExportForm.MERGED: "A causal language model",
    ExportForm.MERGED_DEQUANTISED: "A causal language model",
    ExportForm.GGUF: "A causal language model as GGUF,",
}
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
            *safeguards(facts.safeguards, sum(facts.rollouts.values())),
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
    return ["## Weights", "", *table(("", ""), rows), ""]


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
    return ["## Training", "", *table(("", ""), [*rows, ("reward", columns)]), ""]


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
        lines += [*table(("checkpoint", "reward (95 %)", *columns), rows), ""]
    if facts.evaluations:
        told = [(name, str(reward["count"]), _interval(reward)) for name, reward in facts.evaluations]
        lines += ["Evaluations on the same environment version, newest first:", ""]
        lines += [*table(("policy", "tasks", "reward (95 %)"), told), ""]
    return lines


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
        *table(("", ""), rows),
    ]


def _interval(estimate: Mapping[str, Any] | None) -> str:
    if not estimate:
        return "–"
    return f"{estimate['mean']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"
