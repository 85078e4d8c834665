"""How the launch form is laid out: titles, what stands first, what is only for those who look for it.

A choice that is not named here appears all the same, in a folded section with its block's name.
"""

from collections.abc import Mapping

MACHINE = "machine"
"""A section of the form that is no block of the configuration."""

TITLES: Mapping[str, str] = {
    "": "Recipe",
    "model": "Policy",
    "adapter": "What is trained of it",
    "sft": "Imitation (SFT)",
    "gate": "Gate before reinforcement",
    "grpo": "Reinforcement (GRPO)",
    "curriculum": "Curriculum",
    "mix": "Further environments",
    "heldout": "Held-out examination",
    "checkpoints": "Checkpoints",
    "budget": "Budget",
    "alarms": "Alarms",
    "detectors": "What detectors do",
    "hardware": "Device and precision",
    "vllm": "Sampling with vLLM",
    MACHINE: "Machine",
}
ORDER = tuple(TITLES)
SECTION_OF_TOP_LEVEL: Mapping[str, str] = {
    **dict.fromkeys(("recipe", "seed"), ""),
    "mix": "mix",
    **dict.fromkeys(("engine", "concurrency", "servers", "threads"), MACHINE),
}
HELP = {
    "": "Which stages the run has.",
    "mix": "Train on several environments at once.",
    MACHINE: "What of the machine it uses.",
}

BASIC = frozenset(
    {
        *("recipe", "seed", "model.source", "model.size", "model.checkpoint", "model.base"),
        *(
            "sft.source",
            "sft.script",
            "sft.episodes",
            "sft.script_where",
            "sft.runs",
            "sft.where",
            "sft.file",
            "sft.steps",
        ),
        *("sft.learning_rate", "grpo.steps", "grpo.tasks_per_step", "grpo.group_size", "grpo.learning_rate"),
        *("grpo.loss_type", "grpo.beta", "grpo.temperature", "heldout.every", "heldout.tasks"),
    }
)
"""What nearly everybody wants to see. Other choices of the same block are folded away beneath."""
CARDS: Mapping[str, Mapping[str, str]] = {
    "recipe": {
        "sft_then_grpo": "Imitate until replies are understood, then learn from the reward. For models that know"
        " nothing of the task, and all made from scratch.",
        "sft": "Only imitate. For a warm-up to start other runs from, or where good play is there to be copied.",
        "grpo": "Only learn from the reward. For a model or checkpoint that succeeds sometimes already.",
    },
    "model.source": {
        "scratch": "A small model made here; nothing is downloaded.",
        "base": "A Hugging Face name or a folder on the worker.",
        "checkpoint": "Weights that an earlier run left.",
    },
}
"""Choices that are shown as cards, each with what it means."""
LABELS: Mapping[str, str] = {
    "scratch": "From scratch",
    "base": "Hugging Face model or folder",
    "checkpoint": "Checkpoint",
    "sft_then_grpo": "SFT, then GRPO",
    "sft": "SFT only",
    "grpo": "GRPO only",
}
ONLY: Mapping[str, str] = {
    **dict.fromkeys(
        (f"model.{name}" for name in ("size", "architecture", "context", "vocabulary", "pieces", "initializer_range")),
        "model.source=scratch",
    ),
    "model.checkpoint": "model.source=checkpoint",
    "model.base": "model.source=base",
    **dict.fromkeys(
        (f"adapter.{name}" for name in ("rank", "alpha", "dropout", "targets", "is_rank_stabilised")),
        "adapter.kind=lora|qlora",
    ),
    "adapter.is_double_quantised": "adapter.kind=qlora",
    **dict.fromkeys(
        (f"sft.{name}" for name in ("script", "episodes", "noise", "script_where")),
        "sft.source=script;sft.also_script!=0",
    ),
    **dict.fromkeys(("sft.runs", "sft.where"), "sft.source=rollouts;sft.also_rollouts!=0"),
    "sft.file": "sft.source=file;sft.also_file!=0",
    **dict.fromkeys(("grpo.importance_level", "grpo.epsilon", "grpo.epsilon_high"), "grpo.updates!=1"),
    "vllm.memory": "vllm.mode=colocate",
    "vllm.server": "vllm.mode=server",
    **dict.fromkeys(("sft.most", "sft.system"), "sft.source=rollouts|file;sft.also_rollouts!=0;sft.also_file!=0"),
    **dict.fromkeys(
        (f"curriculum.{name}" for name in ("start", "mastery", "collapse", "window", "lower", "width", "success_at")),
        "curriculum.kind=adaptive",
    ),
}
"""What counts only with another choice (any of those after a semicolon); it is hidden otherwise, and shown where no
script runs."""
SECTION_ONLY: Mapping[str, str] = {
    "sft": "recipe=sft_then_grpo|sft",
    "gate": "recipe=sft_then_grpo",
    "grpo": "recipe=sft_then_grpo|grpo",
    "curriculum": "recipe=sft_then_grpo|grpo",
    "detectors": "recipe=sft_then_grpo|grpo",
    "vllm": "engine=vllm",
}
NAMES: Mapping[str, str] = {
    "model.source": "Starts from",
    "model.base": "Name or folder",
    "model.context": "Context in tokens",
    "sft.source": "Imitates",
    "sft.where": "Which rollouts",
    "sft.runs": "Of these runs",
    "grpo.group_size": "Episodes of each task",
    "grpo.micro_batches": "Parts of a step",
    "heldout.every": "Steps between examinations",
    "heldout.tasks": "Held-out tasks",
    "checkpoints.every": "Steps between saved states",
    "adapter.kind": "Trained weights",
    "curriculum.kind": "Levels",
    "detectors.thresholds": "Thresholds of detectors",
    "mix": "Environments by weight",
    "concurrency": "Episodes at once",
    "servers": "Env servers",
    "threads": "CPU threads",
}
"""Where a choice's own name says too little on a page. The names in the configuration stay as they are."""
CHOSEN_FROM: Mapping[str, str] = {"model.checkpoint": "checkpoints", "sft.file": "lesson_files"}
"""Ids that are picked from a list."""
LARGE = frozenset(
    {"sft.script_where", "sft.where", "sft.runs", "model.base", "mix", "model.checkpoint", "detectors.thresholds"}
)
"""Fields that need the whole width."""
WORDS: Mapping[str, str] = {
    "sft": "SFT",
    "grpo": "GRPO",
    "adam": "Adam",
    "beta2": "beta₂",
    "is": "",
    "top": "top",
    "kl": "KL",
    "vllm": "vLLM",
    "k": "k",
    "p": "p",
}
