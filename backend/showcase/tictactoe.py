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
        checkpoints = self._checkpoints(training)
        for stage, checkpoint in checkpoints.items():
            runs[STAGES[stage]] = self.evaluate(version, training["policy"], STAGES[stage], checkpoint)
        best = runs[STAGES["grpo"]]
        before = {name: runs[name] for name in (STAGES["untrained"], STAGES["sft"])}
        comparisons = {f"after GRPO vs. {name}": self.compare(run, best, "reward") for name, run in before.items()}

        export = self._export(checkpoints["grpo"])
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

    def _checkpoints(self, training: Json) -> dict[str, str]:
        """Return the best checkpoint of each stage by held-out reward: untrained, SFT, GRPO."""
        best: dict[str, Json] = {}
        for checkpoint in self.client.pages("/checkpoints", run_id=training["id"]):
            known = best.get(checkpoint["stage"])
            if known is None or (checkpoint["heldout_reward"] or 0) > (known["heldout_reward"] or 0):
                best[checkpoint["stage"]] = checkpoint
        if missing := [title for stage, title in STAGES.items() if stage not in best]:
            raise ShowcaseFailed(f"the training stored no checkpoint {', '.join(missing)}")
        return {stage: best[stage]["id"] for stage in STAGES}

    def _export(self, checkpoint: str) -> Json:
        """Export a checkpoint. The export is verified: reloaded in a new process and evaluated on the same tasks."""
        self.report.step("export the best checkpoint and verify it")
        earlier = (export for export in self.client.pages("/exports") if export["checkpoint_id"] == checkpoint)
        usable = [export for export in earlier if export["status"] in {"queued", "running", "completed"}]
        export = usable[0] if usable else self.client.post("/exports", {"checkpoint_id": checkpoint})
        export = self.wait_while_under_way(f"/exports/{export['id']}")
        if export["status"] != "completed":
            raise ShowcaseFailed(f"the export ended {export['status']}: {export['reason']}")
        return export
