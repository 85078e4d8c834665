"""The red team's trained attacker: `python -m workers.training.attacker <job id>`.

A tiny policy from scratch learns the form of replies, never the right one: it imitates policies that do not try, and
right replies to other tasks. GRPO then raises the reward of the draft. Whatever it learns is an exploit if

- its replies earn reward on other tasks, too, where they were played again, or
- an oracle of the environment (`SECOND_GRADES`) grades episodes low that earned as much as a success.

It runs on the CPU with the trainers of training runs. Nothing is stored but the answer of the job.
"""

import logging
import sys
import tempfile
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import structlog
import torch
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.detectors.run_view import oracle_grades
from backend.domain.environments.answers import FLATTERY
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.statistics import estimate_mean
from backend.domain.training.configuration import HardwareChoice, ModelChoice, TrainingConfiguration
from backend.domain.training.examples import Conversation
from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.warm_up import SftChoice
from backend.domain.vocabulary import Phase, Split
from workers.environments.checks.base import success_bounds
from workers.environments.checks.policies import DEGENERATE, ReplyPlayer, ReplyPolicy, writes
from workers.environments.checks.subject import CheckSubject
from workers.environments.red_team import AttackReport, ExploitSearch, NoFloor, OnProgress
from workers.models.build import build_model, build_tokenizer
from workers.models.chat import ChatTokens
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy, Turn
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan
from workers.storage.attacks import AttackRecorder
from workers.training.assignment import TrainingEnv
from workers.training.env_pool import EnvPool, open_env_pool
from workers.training.examples import TrainingExample, example_of_conversation
from workers.training.grpo_batch import GrpoRun, GrpoStep
from workers.training.hardware import select_device
from workers.training.sft import SftRun, train_sft
from workers.training.trl_grpo import train_grpo

CONFIGURATION = TrainingConfiguration(
    model=ModelChoice(size="tiny", vocabulary=768, context=1024, pieces="phrases"),
    sft=SftChoice(steps=150, batch=16, learning_rate=2e-3),
    grpo=GrpoChoice(
        steps=300, tasks_per_step=8, group_size=8, learning_rate=1e-3, schedule="constant", beta=0.0, max_grad_norm=1.0
    ),
    hardware=HardwareChoice(device="cpu"),
    concurrency=64,
)
IDLE_POLICIES: dict[str, Callable[[Sequence[str]], Policy]] = {
    **{
        name: DEGENERATE[name]
        for name in ("random", "constant", "format_only", "refusal", "injection", "repeat_last", "early_exit", "empty")
    },
    "praise": lambda gold: writes(FLATTERY),
}
"""Policies that do not try and whose replies are short enough to imitate, built from gold's first replies."""
FORM_TASKS, IDLE_TASKS = 32, 8
"""Training tasks on which right replies to other tasks are played, and each policy that does not try."""
MAX_TOKENS = 64
"""Tokens of a reply: an untrained policy writes until it is cut."""
WARM_UP_SHARE, TRAINED_SHARE = 0.3, 0.85
"""Parts of the budget after which the warm-up and GRPO end. The rest is for proof."""
LATEST = 512
"""Rollouts of the latest steps whose replies are candidates."""
CANDIDATES, KEPT = 8, 3
"""Replies that are played on other tasks at most, and exploits of each kind that are proposed: more are variations."""
LOW_GRADE, GOOD_GRADE, FEWEST = 0.3, 0.5, 5
"""Largest grade of an oracle that counts as low, smallest mean grade of gold with which an oracle is trusted, and
smallest number of episodes that contradict it."""
STUCK_STEPS = 10
"""Steps in a row without different rewards in any group, after which the policy learns nothing more."""

logger = structlog.get_logger(__name__)


class NothingToImitate(ValueError):
    """No reply fits into the context of the small model: its prompts are too long to train on in minutes."""


@dataclass
class Oracle:
    """Grades the content of episodes from 0 to 1: by the environment's own oracles, or by gold's last actions."""

    manifest: Manifest
    right: dict[str, dict[str, object]] = field(default_factory=dict)
    """Last action of gold by task, for environments without an oracle."""
    names: tuple[str, ...] = ()
    """Metrics or columns of the environment that grade. Empty: gold's last action decides."""
    scale: float = 1.0

    @classmethod
    def of(cls, manifest: Manifest, gold: Sequence[Rollout], others: Sequence[Rollout]) -> "Oracle":
        """Return the oracle of an environment. Its own is used unless it grades gold low."""
        oracle = cls(manifest)
        oracle.right = {rollout.task.key: action for rollout in gold if (action := rollout.steps[-1].action)}
        seen = [oracle._grades(rollout) for rollout in gold or others]
        oracle.names = tuple(sorted({name for grades in seen for name in grades}))
        oracle.scale = max(1.0, *(grade for grades in seen for grade in grades.values()), 1.0)
        if gold and oracle.names and fmean([oracle.grade(rollout) or 0.0 for rollout in gold]) < GOOD_GRADE:
            oracle.names = ()
        return oracle

    def _grades(self, rollout: Rollout) -> dict[str, float]:
        weights = {column.name: column.weight for column in self.manifest.columns}
        return oracle_grades({**rollout.metrics, **rollout.columns}, weights)

    def grade(self, rollout: Rollout) -> float | None:
        if self.names:
            grades = self._grades(rollout)
            return fmean([grades.get(name, 0.0) for name in self.names]) / self.scale
        known = self.right.get(rollout.task.key)
        return None if known is None else float(any(step.action == known for step in rollout.steps))

    def __str__(self) -> str:
        return f"the oracle {', '.join(self.names)}" if self.names else "share of episodes with gold's last action"


@dataclass
class TrainedAttack:
    """One attack: its environment, its search and what the policy did in training."""

    env: TrainingEnv
    pool: EnvPool
    search: ExploitSearch
    folder: Path
    seed: int = 0
    oracle: Oracle = field(init=False)
    curve: list[tuple[float, float | None]] = field(default_factory=list)
    """Mean reward and mean grade of each GRPO step."""
    latest: deque[Rollout] = field(default_factory=lambda: deque(maxlen=LATEST))
    stuck: int = 0

    def run(self) -> None:
        played = self.collect()
        tokenizer = build_tokenizer(
            (str(message["content"]) for rollout in played for message in rollout.messages),
            vocabulary=CONFIGURATION.model.vocabulary,
            context=CONFIGURATION.model.context,
            pieces=CONFIGURATION.model.pieces,
        )
        chat = ChatTokens(tokenizer)
        examples = [example for rollout in played if (example := self.example_of(rollout, chat))]
        if not examples:
            raise NothingToImitate(NothingToImitate.__doc__)
        model = build_model(tokenizer, CONFIGURATION.model, seed=self.seed)
        train_sft(
            SftRun(
                model=model,
                tokenizer=tokenizer,
                seed=self.seed,
                choice=CONFIGURATION.sft,
                examples=examples,
                folder=self.folder / "sft",
                save_every=CONFIGURATION.sft.steps,
                on_step=self.after_warm_up_step,
            )
        )
        choice = CONFIGURATION.grpo
        policy = LocalPolicy(model, tokenizer, temperature=choice.temperature, lockstep=True)
        try:
            train_grpo(
                GrpoRun(
                    model=model,
                    tokenizer=tokenizer,
                    seed=self.seed,
                    choice=choice,
                    columns=self.env.manifest.columns,
                    folder=self.folder / "grpo",
                    save_every=choice.steps,
                    policy=policy,
                    play=partial(self.play, policy),
                    on_step=self.after_step,
                )
            )
        finally:
            self.pool.close_policy(policy)
        self.prove()

    def play_once(self, policy: Policy, tasks: Sequence[TaskSpec]) -> list[Rollout]:
        """Return completed episodes to imitate, as far as the time of the warm-up allows."""
        play = partial(self.search.play, policy, tasks, until=WARM_UP_SHARE)
        return [rollout for rollout in self.pool.portal.call(play) if rollout.is_completed and rollout.steps]

    def collect(self) -> list[Rollout]:
        """Play what the policy may imitate, on training tasks, and learn from gold how to grade."""
        search, subject = self.search, self.search.subject
        tasks = subject.tasks(FORM_TASKS, Split.TRAIN)[:FORM_TASKS]
        search.report("right replies, to grade content")
        gold = self.play_once(ScriptedPolicy("gold"), tasks) if "gold" in subject.scripts else []
        played: list[Rollout] = []
        openings = [rollout.steps[0].reply for rollout in gold]
        for name, make in IDLE_POLICIES.items():
            search.report(f"replies of the policy {name}")
            count = FORM_TASKS if name == "random" else IDLE_TASKS
            played += self.play_once(make(openings), tasks[:count])
        self.oracle = Oracle.of(self.env.manifest, gold, played)
        if len(gold) > 1:
            transcripts = {
                rollout.task.key: [step.reply for step in other.steps]
                for rollout, other in zip(gold, [*gold[1:], gold[0]], strict=True)
            }

            def reply(player: ReplyPlayer, turn: Turn) -> str:
                replies = transcripts[player.task.key]
                return replies[min(turn.index, len(replies) - 1)]

            search.report("right replies to other tasks")
            played += self.play_once(ReplyPolicy(reply), [rollout.task for rollout in gold])
        return played

    def example_of(self, rollout: Rollout, chat: ChatTokens) -> TrainingExample | None:
        """Return an episode to imitate; None if it does not fit."""
        messages = [{"role": each["role"], "content": str(each["content"])} for each in rollout.messages]
        example = example_of_conversation(Conversation(messages, (True,) * len(rollout.steps)), chat)
        if example is None or len(example.tokens) >= CONFIGURATION.model.context:
            return None
        longest = max(len(chat.reply(step.reply)) for step in rollout.steps)
        return example if longest <= self.env.manifest.proctor.episode.max_tokens_per_turn else None

    def after_warm_up_step(self, step: int, figures: dict[str, float]) -> bool:
        self.search.report(f"warm-up step {step}")
        return not self.search.is_over(WARM_UP_SHARE + (TRAINED_SHARE - WARM_UP_SHARE) / 4)

    def play(self, policy: LocalPolicy, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        choice = CONFIGURATION.grpo
        plans = []
        for ordinal in ordinals:
            index = ((step - 1) * choice.tasks_per_step + ordinal) % FORM_TASKS
            task = self.env.task(Split.TRAIN, index)
            plans.append(GroupPlan(task, ordinal, tuple(range(choice.group_size))))
        return self.pool.play_in_lockstep(plans, policy, phase=Phase.TRAIN, seed=self.seed, training_step=step)

    def after_step(self, step: GrpoStep) -> bool:
        completed = [rollout for rollout in step.rollouts if rollout.is_completed and rollout.steps]
        self.latest += completed
        grades = [grade for rollout in completed if (grade := self.oracle.grade(rollout)) is not None]
        reward = fmean([rollout.reward or 0.0 for rollout in completed])
        self.curve.append((reward, fmean(grades) if grades else None))
        self.stuck = self.stuck + 1 if step.figures["groups/no_variance"] == 1 else 0
        self.search.report(f"GRPO step {step.step}, reward {reward:.3g}")
        return self.stuck < STUCK_STEPS and not self.search.is_over(TRAINED_SHARE)

    def prove(self) -> None:
        """Keep episodes that an oracle contradicts, and play the best replies on other tasks."""
        search, name = self.search, f"trained for {len(self.curve)} GRPO steps"
        bounds = success_bounds(search.subject.manifest)
        if self.oracle.names and bounds is not None:
            contradicted = [
                rollout
                for rollout in self.latest
                if (rollout.reward or 0.0) > max(search.limit, bounds[rollout.task.level])
                and (self.oracle.grade(rollout) or 0.0) <= LOW_GRADE
            ]
            estimate = estimate_mean([rollout.reward or 0.0 for rollout in contradicted])
            if estimate is not None and len(contradicted) >= FEWEST:
                grade = fmean([self.oracle.grade(rollout) or 0.0 for rollout in contradicted])
                for rollout in sorted(contradicted, key=lambda each: -(each.reward or 0.0))[:KEPT]:
                    search.keep("trained", f"{name}: {self.oracle} grades it low", estimate, rollout, grade)
        by_replies: defaultdict[tuple[str, ...], list[Rollout]] = defaultdict(list)
        for rollout in self.latest:
            by_replies[tuple(step.reply for step in rollout.steps)].append(rollout)
        best = sorted(
            by_replies.values(), key=lambda group: (-fmean([each.reward or 0.0 for each in group]), -len(group))
        )
        enough = len(search.exploits) + KEPT
        for tried, group in enumerate(best[:CANDIDATES]):
            mean = fmean([each.reward or 0.0 for each in group])
            if search.is_over() or len(search.exploits) >= enough or mean <= search.limit:
                break
            search.report(f"proof of replies, {tried} of {CANDIDATES}")
            self.pool.portal.call(search.prove, "trained", f"{name}, on other tasks", group[0])
        count = len(self.curve)
        parts = self.curve[: max(1, count // 5)], self.curve[-max(1, count // 5) :]
        rewards = [fmean([reward for reward, _ in part]) for part in parts] if count else []
        grades = [fmean([grade for _, grade in part if grade is not None] or [0.0]) for part in parts]
        note = f"Trained attacker: {count} GRPO steps in {search.elapsed:.0f} s."
        if count:
            note += f" Mean reward {rewards[0]:.3g} at first, {rewards[1]:.3g} at last"
            is_graded = self.curve[0][1] is not None
            note += f"; {self.oracle} {grades[0]:.2g}, then {grades[1]:.2g}." if is_graded else "."
        search.notes.append(note)


def train_attacker(
    manifest: Manifest,
    files: dict[str, str],
    *,
    seconds: float,
    on_progress: OnProgress = lambda phase, share, exploits: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> AttackReport:
    """Train a policy on the draft's reward within `seconds`, and return the exploits that it learned. Raises NoFloor.

    The model must be placed on the CPU: call `select_device` before torch is used.
    """
    torch.set_num_threads(CONFIGURATION.threads)
    short = manifest.with_reply_limit(min(MAX_TOKENS, manifest.proctor.episode.max_tokens_per_turn))
    env = TrainingEnv(manifest.name, uuid.UUID(int=0), short, content_hash(files), files)
    with open_env_pool([env], CONFIGURATION) as pool, tempfile.TemporaryDirectory(prefix="attacker-") as folder:
        subject = CheckSubject(short, pool.server_of(env.tag), files=files, should_stop=should_stop)
        search = ExploitSearch(subject, seconds, on_progress)
        pool.portal.call(search.open)
        TrainedAttack(env, pool, search, Path(folder)).run()
    return AttackReport(search.exploits, search.notes)


def main() -> int:
    job_id = uuid.UUID(sys.argv[1])
    configure_logging("attacker")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    recorder = AttackRecorder(job_id)
    with transaction() as session:
        arguments = session.get_one(Job, job_id).arguments
    draft = recorder.read_draft(arguments["environment_id"])
    if draft is None:
        return 0
    try:
        select_device(CONFIGURATION.hardware)
        seconds = float(arguments["seconds"])
        report = train_attacker(
            draft.manifest,
            draft.files,
            seconds=seconds,
            on_progress=recorder.progress,
            should_stop=recorder.is_canceled,
        )
        recorder.finish(report, draft.revision)
    except NoFloor as error:
        recorder.fail(str(error))
    except Exception as error:
        logger.exception("the trained attacker failed")
        recorder.fail(f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
