"""Tic-tac-toe: a reward is checked, a small model trained on it, examined and exported.

Each step finds what an earlier showcase left and goes on from there, so that it may be cut and run again.
"""

from typing import Any

from backend.showcase.steps import Outcome, ShowcaseFailed, Steps

ENVIRONMENT = "tictactoe"
BASELINES = ("random", "constant")
STAGES = {"untrained": "untrained", "sft": "after SFT", "grpo": "after GRPO"}


class TicTacToe(Steps):
    """What Proctor is there for, when all goes well."""

    usual_preset = "tictactoe-demo"

    def run(self) -> Outcome:
        version = self._check()
        examined = {script: self.examine(version, script, script) for script in BASELINES}
        training = self._train(version)
        for stage, checkpoint in self._checkpoints(training).items():
            examined[STAGES[stage]] = self.examine(version, training["policy"], STAGES[stage], checkpoint)
        best = examined[STAGES["grpo"]]
        before = {name: examined[name] for name in (STAGES["untrained"], STAGES["sft"])}
        comparisons = {f"after GRPO against {name}": self.compare(run, best, "reward") for name, run in before.items()}
        export = self._export(self._checkpoints(training)["grpo"])
        compared = f"/compare?a={examined[STAGES['sft']]['id']}&b={best['id']}"
        return Outcome(
            title=f"Reward on the same {self.tasks} held-out tasks",
            figure="reward",
            figures={name: run["summary"]["reward"] for name, run in examined.items()},
            comparisons=comparisons,
            links={
                "training": f"{self.client.url}/runs/{training['id']}",
                "before and after": f"{self.client.url}{compared}",
                "review": f"{self.client.url}/review",
                "export": f"{self.client.url}/exports/{export['id']}",
            },
        )

    def _check(self) -> dict[str, Any]:
        """The newest version, once its certificate is there."""
        self.report.step(f"check {ENVIRONMENT}: is its reward sound?")
        version: dict[str, Any] = self.client.get(f"/environments/{ENVIRONMENT}")["latest"]
        status = self.certificate(ENVIRONMENT, version["number"])["status"]
        if status == "failed":
            raise ShowcaseFailed(f"{ENVIRONMENT} v{version['number']} failed its checks")
        return version

    def _train(self, version: dict[str, Any]) -> dict[str, Any]:
        self.report.step("train a small model from scratch: SFT warm-up on scripted play, then GRPO")
        return self.follow(self.start_training(version, f"{ENVIRONMENT} showcase v{version['number']}"))

    def _checkpoints(self, training: dict[str, Any]) -> dict[str, str]:
        """Untrained, after the warm-up, and the best of GRPO by held-out reward, in this order."""
        found = list(self.client.pages("/checkpoints", run_id=training["id"]))
        best: dict[str, dict[str, Any]] = {}
        for checkpoint in found:
            known = best.get(checkpoint["stage"])
            if known is None or (checkpoint["heldout_reward"] or 0) > (known["heldout_reward"] or 0):
                best[checkpoint["stage"]] = checkpoint
        missing = [title for stage, title in STAGES.items() if stage not in best]
        if missing:
            raise ShowcaseFailed(f"the training left no checkpoint {', '.join(missing)}")
        return {stage: best[stage]["id"] for stage in STAGES}

    def _export(self, checkpoint: str) -> dict[str, Any]:
        """An export is proven: loaded again in a fresh process and examined on the same tasks."""
        self.report.step("export the best checkpoint and prove it")
        earlier = [export for export in self.client.pages("/exports") if export["checkpoint_id"] == checkpoint]
        usable = [export for export in earlier if export["status"] in {"queued", "running", "completed"}]
        export = usable[0] if usable else self.client.post("/exports", {"checkpoint_id": checkpoint})
        export = self.finish(f"/exports/{export['id']}")
        if export["status"] != "completed":
            raise ShowcaseFailed(f"the export ended {export['status']}: {export['reason']}")
        return export
