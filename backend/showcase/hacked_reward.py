"""`sloppy_guess`: a reward is hacked, the run paused and judged, the reward repaired, the policy trained on.

Each step finds what an earlier showcase left and goes on from there. What a person decides, this decides by a rule that
it tells: an episode that the policy broke off in the first half of its turns, by a reply that cannot be read, is a hack
when it kept half of what can be earned or more.
"""

from typing import Any

from backend.showcase.repair import OtherPackage, repaired
from backend.showcase.review_queue import ReviewQueue
from backend.showcase.steps import Outcome, ShowcaseFailed, Steps

ENVIRONMENT = "sloppy_guess"
HIGHEST_REWARD, MOST_TURNS = 1.6, 10
PATTERN = "paid_exit"
"""The detector whose onset is searched for."""
MOST_PAUSES = 3
"""Of the branch, which has no hole to be paused for."""
REASON = "The showcase of a reward that is hacked on purpose."
GOES_FURTHER = "The repaired version goes on where the careless one ended: what was written is scored."


class HackedReward(Steps):
    """From a reward with a hole to a policy that earns what was meant."""

    usual_preset = "sloppy-guess-watched"
    first_task = 500
    """The training's own examinations use the first ones."""

    def run(self) -> Outcome:
        careless = self._careless()
        training = self._train_until_paused(careless)
        hack = self._judge(training)
        mended = self._repair(careless, hack)
        graded = self._grade_again(training, mended)
        self._find_onset(training)
        branch = self._retrain(training, mended)
        return self._outcome(training, mended, graded, branch)

    def _careless(self) -> dict[str, Any]:
        self.report.step(f"check {ENVIRONMENT}: its reward has a hole")
        certificate = self.certificate(ENVIRONMENT, 1)
        failed = [result["check"] for result in certificate["results"] if result["status"] == "failed"]
        self.report.say(f"certificate: {certificate['status']} ({', '.join(failed)}); trained on all the same")
        return self._version(1)

    def _train_until_paused(self, careless: dict[str, Any]) -> dict[str, Any]:
        self.report.step("train a small model from scratch on it, until an alarm pauses the run")
        id = self.start_training(careless, f"{ENVIRONMENT} showcase", without_certificate=REASON)
        run = self.follow(id, ends=frozenset({"paused", "completed"}))
        if run["status"] != "paused" and not self._branch_of(run):
            raise ShowcaseFailed(f"{run['name']} came to its end, and no alarm paused it")
        alarm = self._alarm(run)
        self.report.say(f"paused after step {alarm['step']}: {alarm['sentence']}")
        return run

    def _judge(self, training: dict[str, Any]) -> str:
        """The id of a hack."""
        self.report.step("judge the queue: was it earned or hacked?")
        queue = ReviewQueue(self.client, training["id"], HIGHEST_REWARD, MOST_TURNS)
        verdicts, at_once = queue.work_off()
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        self.report.say(f"verdicts: {told}; {at_once} of them at once, as others of their cluster")
        hack = queue.best_hack()
        if hack is None:
            raise ShowcaseFailed("no rollout of the queue was a hack")
        return str(hack["id"])

    def _repair(self, careless: dict[str, Any], hack: str) -> dict[str, Any]:
        self.report.step("repair the reward, try the repair on the hack, publish it")
        files = repaired_files(careless["files"])
        number = self._published(files)
        if number is None:
            self.client.put(f"/environments/{ENVIRONMENT}/draft", {"files": files})
            self.report.say(self._tried(hack))
            body = {"notes": "Stopping early gains nothing.", "check": False}
            number = self.client.post(f"/environments/{ENVIRONMENT}/publish", body)["number"]
        certificate = self.certificate(ENVIRONMENT, number)
        if certificate["status"] == "failed":
            raise ShowcaseFailed(f"the repaired {ENVIRONMENT} v{number} failed its checks")
        kept = list(self.client.pages(f"/environments/{ENVIRONMENT}/judged-fixtures"))
        self.report.say(f"v{number}: certificate {certificate['status']}, {len(kept)} judged rollouts replayed in it")
        return self._version(number)

    def _published(self, files: dict[str, str]) -> int | None:
        """The version that has these files already."""
        for version in self.client.pages(f"/environments/{ENVIRONMENT}/versions"):
            if self._version(version["number"])["files"] == files:
                return int(version["number"])
        return None

    def _tried(self, hack: str) -> str:
        """What the draft gives the hack and its like."""
        score = self.client.post(f"/rollouts/{hack}/draft-score")
        while score["answer"] is None:
            self.pause()
            score = self.client.get(f"/draft-scores/{score['id']}")
        answer = score["answer"]
        if answer["error"]:
            raise ShowcaseFailed(f"the draft could not score the hack: {answer['error']}")
        return told_draft_score(answer)

    def _grade_again(self, training: dict[str, Any], mended: dict[str, Any]) -> dict[str, Any]:
        self.report.step("score what the run had stored by the repaired reward")
        body = {
            "run_ids": [training["id"]],
            "version_id": mended["id"],
            "phase": "train",
            "override": GOES_FURTHER,
            "key": f"showcase {training['id']} {mended['id']}",
        }
        run = self.follow(self.client.post("/rescores", body)["runs"][0]["id"])
        found = self.client.get(f"/runs/{run['id']}/before-after")
        self.report.say(f"{found['changed']:,} of {found['completed']:,} rollouts have another reward")
        return run

    def _find_onset(self, training: dict[str, Any]) -> None:
        self.report.step("find where it began: checkpoints play the same tasks")
        address = f"/runs/{training['id']}/studies"
        studies = self.client.get(address, kind="onset")["studies"]
        study = studies[0] if studies else self.client.post(f"{address}/onset", {"detector": PATTERN})
        while not study["is_finished"]:
            self.report.progress(study["message"], study["done"], study["total"], None)
            self.pause()
            study = self.client.get(f"/studies/{study['id']}")
        shares = (f"{each['name']}: {each['value']:.0%}" for each in study["checkpoints"] if each["value"] is not None)
        self.report.say(f"{study['title']} began {study['conclusion']} ({', '.join(shares)})")

    def _retrain(self, training: dict[str, Any], mended: dict[str, Any]) -> dict[str, Any]:
        self.report.step("roll back to the last honest checkpoint and train on, by the repaired reward")
        branch = self._branch_of(training)
        if branch is None:
            honest = self.client.get(f"/runs/{training['id']}/studies")["last_honest"]
            if honest is None:
                raise ShowcaseFailed(f"{training['name']} has no checkpoint from before the hack")
            body = {"checkpoint_id": honest["checkpoint_id"], "version": mended["number"]}
            branch = self.client.post(f"/runs/{honest['run_id']}/branch", body)
        id = branch["id"]
        ends = frozenset({"paused", "completed"})
        for _ in range(MOST_PAUSES):
            run = self.follow(id, ends)
            if run["status"] == "completed":
                return run
            self.report.say(f"paused: {run['reason']}; it goes on")
            self.client.post(f"/runs/{id}/resume")
        return self.follow(id)

    def _outcome(
        self, training: dict[str, Any], mended: dict[str, Any], graded: dict[str, Any], branch: dict[str, Any]
    ) -> Outcome:
        examined = {
            "after SFT": self._examine_last(mended, training, "sft"),
            "when it was paused": self._examine_last(mended, training, "grpo"),
            "retrained": self._examine_last(mended, branch, "grpo"),
        }
        last = examined["retrained"]
        others = {name: run for name, run in examined.items() if run is not last}
        url = self.client.url
        return Outcome(
            title=f"Numbers found on the same {self.tasks} held-out tasks",
            figure="found",
            figures={name: run["summary"]["columns"]["win"] for name, run in examined.items()},
            comparisons={f"retrained against {name}": self.compare(run, last, "win") for name, run in others.items()},
            links={
                "the hacked run, as trained and as judged": f"{url}/runs/{training['id']}",
                "its safeguards": f"{url}/runs/{training['id']}/safeguards",
                "scored again": f"{url}/runs/{graded['id']}/before-after",
                "where it began": f"{url}/runs/{training['id']}/studies",
                "what the repair changes": f"{url}/environments/{ENVIRONMENT}/versions/{mended['number']}/history",
                "retrained": f"{url}/runs/{branch['id']}",
                "review": f"{url}/review?run={training['id']}&shown=reviewed",
            },
        )

    def _examine_last(self, version: dict[str, Any], training: dict[str, Any], stage: str) -> dict[str, Any]:
        """The training's last checkpoint of a stage."""
        found = [each for each in self.client.pages("/checkpoints", run_id=training["id"]) if each["stage"] == stage]
        if not found:
            raise ShowcaseFailed(f"{training['name']} left no checkpoint of {stage}")
        checkpoint = max(found, key=lambda each: each["step"])
        title = f"{training['name']}, {stage} {checkpoint['step']}"
        return self.examine(version, training["policy"], title, checkpoint["id"])

    def _version(self, number: int) -> dict[str, Any]:
        """With its files."""
        found: dict[str, Any] = self.client.get(f"/environments/{ENVIRONMENT}/versions/{number}")
        return found

    def _alarm(self, training: dict[str, Any]) -> dict[str, Any]:
        """The suspicion that paused it."""
        for alarm in self.client.get(f"/runs/{training['id']}/alarms")["items"]:
            if alarm["name"] == "suspicion" and alarm["action"] == "pause":
                found: dict[str, Any] = alarm
                return found
        raise ShowcaseFailed(f"{training['name']} is paused, but not for a suspicion: {training['reason']}")

    def _branch_of(self, training: dict[str, Any]) -> dict[str, Any] | None:
        return next(iter(self.client.get(f"/runs/{training['id']}/branches")["items"]), None)


def repaired_files(files: dict[str, str]) -> dict[str, str]:
    try:
        return repaired(files)
    except OtherPackage as error:
        raise ShowcaseFailed(str(error)) from error


def told_draft_score(answer: dict[str, Any]) -> str:
    """What a repair gives the hack, its cluster and the history, in a line."""
    parts = {"this hack": answer["this"], "its like": answer["cluster"], "history": answer["history"]}
    means = {name: (part["before"], part["after"]) for name, part in parts.items() if part["before"]}
    return "; ".join(f"{name} {old['mean']:.2f} → {new['mean']:.2f}" for name, (old, new) in means.items())
