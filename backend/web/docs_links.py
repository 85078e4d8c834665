"""Where the documentation explains a page, a training setting, an error or a failure."""

import re
from functools import cache
from typing import Final

SECTIONS: Final = {
    "/environments/*/edit": "authoring",
    "/environments/*/red-team": "authoring#attack-the-reward",
    "/environments/*/play": "play",
    "/environments/*/judged": "safeguards#fixtures-from-verdicts",
    "/environments/*/versions/*/history": "regrading",
    "/environments/*/versions": "certificate",
    "/environments": "authoring",
    "/imports": "importing",
    "/policies": "engines",
    "/graders": "graders",
    "/evaluations": "evaluate",
    "/runs/chart": "results",
    "/runs/import": "exchange",
    "/runs/*/rollouts": "filters",
    "/runs/*/export": "exchange",
    "/runs/*/safeguards": "safeguards",
    "/runs/*/rescore": "regrading",
    "/runs/*/graders": "graders",
    "/runs/*/checkpoints": "checkpoints",
    "/runs": "evaluate",
    "/rollouts/*/before-after": "regrading",
    "/rollouts": "evaluate",
    "/rescores": "regrading",
    "/draft-scores": "regrading",
    "/studies": "studies",
    "/sweeps": "sweeps",
    "/compare": "results",
    "/leaderboards": "results",
    "/review": "review",
    "/detectors": "detectors",
    "/training/preflights": "training#preflight",
    "/training/examples": "training#training-examples",
    "/training": "training",
    "/data": "training#training-examples",
    "/checkpoints": "checkpoints",
    "/exports": "checkpoints",
    "/notices": "notifications",
    "/settings/notifications": "notifications",
    "/settings": "deploy",
    "/projects": "organize",
    "/shares": "sharing",
    "/team/review": "review#share-the-work",
    "/team": "accounts",
    "/audit": "accounts",
    "/me": "accounts",
    "/sign-in": "accounts",
    "/links": "accounts",
    "/": "get-started",
}
"""The documentation about each page and those below it. `*` is any segment, and the first match counts."""

SETTINGS: Final = {
    "recipe": "training",
    "seed": "evaluate#reproducibility",
    "model": "training#train-a-pretrained-model",
    "adapter": "checkpoints#adapters",
    "sft": "training#training-examples",
    "sft.file": "training#upload-conversations",
    "sft.where": "filters",
    "sft.script_where": "filters",
    "sft.examine_every": "training#keep-the-best-sft-checkpoint",
    "gate": "training#gate",
    "grpo": "training#grpo",
    "grpo.replace_uniform": "training#groups-without-variance",
    "grpo.loss_type": "training#losses",
    "grpo.importance_level": "training#losses",
    "grpo.epsilon": "training#losses",
    "grpo.aggregation": "training#losses",
    "grpo.scale_rewards": "training#losses",
    "grpo.credit": "training#credit-by-turn",
    "grpo.temperature": "training#sampling",
    "grpo.top_p": "training#sampling",
    "grpo.top_k": "training#sampling",
    "grpo.staleness": "training#sample-ahead",
    "grpo.importance_limit": "training#sample-ahead",
    "grpo.mask_truncated": "training#excluded-episodes",
    "curriculum": "curriculum#curricula",
    "self_play": "training#self-play",
    "rejection": "training#rejection-sampling",
    "rejection.where": "filters",
    "distillation": "training#distillation",
    "preferences": "training#preferences-dpo",
    "preferences.where": "filters",
    "mix": "curriculum#several-environments",
    "heldout": "results#plan-the-number-of-tasks",
    "checkpoints": "checkpoints#retention",
    "budget": "curriculum#budgets",
    "alarms": "steering#alarms",
    "alarms.stall": "steering#recover-from-crashes",
    "alarms.out_of_memory": "training#memory",
    "detectors": "steering#what-detectors-do-during-training",
    "detectors.learned": "detectors#learned-detector",
    "detectors.canary": "detectors#traps",
    "detectors.thresholds": "detectors#settings",
    "hardware": "engines#device-and-precision",
    "hardware.gradient_checkpointing": "training#memory",
    "hardware.processes": "engines#several-gpus",
    "hardware.nodes": "engines#several-machines",
    "hardware.rank_timeout": "engines#several-machines",
    "hardware.start_timeout": "engines#several-machines",
    "hardware.sharding": "engines#shard-a-model-that-does-not-fit",
    "vllm": "engines#vllm-in-training",
    "vllm.server": "engines#swap-the-adapter-at-a-vllm-server",
    "engine": "engines#see-what-workers-can-do",
    "concurrency": "evaluate#concurrency",
    "max_tokens_per_turn": "training#excluded-episodes",
    "machine": "engines",
}
"""The documentation about training settings and their blocks, by dotted name."""

ERRORS: Final = {
    # by the class
    "NotAllowed": "accounts#roles",
    "TooManyAttempts": "accounts#sign-in-limits",
    "ForgedRequest": "accounts#if-a-form-is-rejected",
    "TooLarge": "failures#requests",
    "TookTooLong": "failures#requests",
    "PackageHasProblems": "manifest",
    "DraftChanged": "failures#concurrent-users-and-requests",
    "SecretUnreadable": "deploy#secrets",
    # by the noun in whose code it is declared
    "checkpoints": "checkpoints",
    "deletions": "organize#delete-and-restore",
    "detectors": "detectors#settings",
    "graders": "graders",
    "notifications": "notifications",
    "policies": "evaluate#add-an-endpoint",
    "projects": "organize#use-projects",
    "shares": "sharing",
    "studies": "studies",
}
"""The documentation about errors. That about the page holds for all others."""

FAILURES: Final = {
    # rollouts, by `ErrorKind`
    "policy": "failures#model-endpoints",
    "environment": "failures#packages",
    "sandbox": "sandbox#known-limits",
    "judge": "graders#grade-a-run",
    "limit": "failures#model-endpoints",
    # runs, by `RunKind`
    "evaluation": "evaluate#failures-stop-and-resume",
    "training": "steering#recover-from-crashes",
    "check": "failures#packages",
    "play": "failures#packages",
    "rescore": "regrading",
    "replay": "regrading#replay",
}
"""What to do when something failed."""


def docs_address(section: str) -> str:
    """Return the address of a section: `training#gate`."""
    page, _, anchor = section.partition("#")
    return f"/docs/{page}.html" + (f"#{anchor}" if anchor else "")


def section_about_setting(name: str) -> str:
    """Return the address of the documentation about a training setting or a block of them."""
    while name not in SETTINGS and "." in name:
        name = name.rpartition(".")[0]
    return docs_address(SETTINGS.get(name, SETTINGS["machine"]))


def section_about_error(error: Exception, path: str) -> str:
    """Return the address of the documentation about an error of the page at `path`."""
    kind = type(error)
    noun = kind.__module__.removeprefix("backend.").partition(".")[0]
    section = ERRORS.get(kind.__name__) or ERRORS.get(noun)
    return docs_address(section) if section else section_about(path)


def section_about_failure(kind: str | None) -> str:
    """Return the address of the advice about a failed rollout or run of this kind."""
    return docs_address(FAILURES.get(kind or "", "failures"))


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(path.replace("*", "[^/]+") + "(/|$)"), section) for path, section in SECTIONS.items()]


def section_about(path: str) -> str:
    """Return the address of the documentation about the page at `path`."""
    return docs_address(next((found for pattern, found in _patterns() if pattern.match(path)), "index"))
