"""Tic-tac-toe: check a reward, train a small model on it, evaluate and export it."""

from backend.showcase.steps import Showcase, ShowcaseFailed, ShowcaseResult
from proctor import Json

ENVIRONMENT = "tictactoe"
BASELINES = ("random", "constant")
STAGES = {"untrained": "untrained", "sft": "after SFT", "grpo": "after GRPO"}


class TicTacToe(Showcase):
    """The workflow when all goes well."""

    default_preset = "tictactoe-demo"

    def run(self) -> ShowcaseResult:
        self.report.step(f"check {ENVIRONMENT}: is its reward sound?")
        version = self.client.get(f"/environments/{ENVIRONMENT}")["latest"]
        if self.certificate(ENVIRONMENT, version["number"])["status"] == "failed":
            raise ShowcaseFailed(f"{ENVIRONMENT} v{version['number']} failed its checks")
        runs = {policy: self.evaluate(version, policy, policy) for policy in BASELINES}

        self.report.step("train a small model from scratch: SFT warm-up on scripted play, then GRPO")
        training = self.follow(self.start_training(version, f"{ENVIRONMENT} showcase v{version['number']}"))
        checkpoints: dict[str, Json] = {}  # the best of each stage
        for checkpoint in self.client.pages("/checkpoints", run_id=training["id"]):
            known = checkpoints.get(checkpoint["stage"])
            if known is None or (checkpoint["heldout_reward"] or 0) > (known["heldout_reward"] or 0):
                checkpoints[checkpoint["stage"]] = checkpoint
        if missing := [title for stage, title in STAGES.items() if stage not in checkpoints]:
            raise ShowcaseFailed(f"the training stored no checkpoint {', '.join(missing)}")
        for stage, title in STAGES.items():
            runs[title] = self.evaluate(version, training["policy"], title, checkpoints[stage]["id"])
        best = runs[STAGES["grpo"]]
        before = {name: runs[name] for name in (STAGES["untrained"], STAGES["sft"])}
        comparisons = {f"after GRPO vs. {name}": self.compare(run, best, "reward") for name, run in before.items()}

        export = self.export(checkpoints["grpo"]["id"])  # reloaded and evaluated on the same tasks
        url = self.client.url
        return ShowcaseResult(
            title=f"Reward on the same {self.tasks} held-out tasks",
            figure="reward",
            figures={name: run["summary"]["reward"] for name, run in runs.items()},
            comparisons=comparisons,
            links={
                "training": f"{url}/runs/{training['id']}",
                "before and after": f"{url}/compare?a={runs[STAGES['sft']]['id']}&b={best['id']}",
                "review": f"{url}/review",
                "export": f"{url}/exports/{export['id']}",
            },
        )
