"""A detector's view: the environment of a run, figures of every step so far, and rollouts of the newest ones."""

import ast
import re
import statistics
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

from backend.domain.detectors.learned_model import LearnedModel
from backend.domain.detectors.spec import MAX_SPANS, SHOWN_ROLLOUTS, SHOWN_STEPS, FlagDraft, Mark
from backend.domain.environments.manifest import PLATFORM_COLUMNS, Manifest
from backend.domain.environments.reward_bounds import Ranges, declared_ranges
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule, possible_rewards
from backend.domain.rollouts.rollout import CANARY, Rollout
from backend.domain.vocabulary import Severity, StopReason

RECENT_STEPS = 5
"""Steps whose rollouts are kept, and over which the present is averaged."""
BASE_STEPS = 10
"""Steps at the beginning that the present is compared with."""
SAME_REWARD = 1e-6
BROKEN_OFF = {StopReason.UNPARSABLE, StopReason.TOKEN_LIMIT, StopReason.CONTEXT_FULL}
"""Stop reasons of episodes that ended early because a reply could not be read or was cut."""
SECOND_GRADES = ("oracle", "gold", "truth", "true_", "ground_truth", "hidden")
"""Beginnings of the names of metrics that grade a rollout independently of the reward."""
MOST_WORDS = 200
"""A longer list of words is the tasks' material and not the grader's."""
NOVELTY_CHARACTERS = 2_000
"""Novelty is measured on this part of each reply."""
FEWEST_GRAMS = 8
MOST_KNOWN = 500_000
"""Trigrams of a run that are kept."""
_WORD = re.compile(r"[a-z]{4,}")
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def oracle_grades(values: Mapping[str, object], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the grades of oracles among columns and metrics: those named so (`SECOND_GRADES`), without a weight."""
    return {
        name: float(value)
        for name, value in values.items()
        if name.startswith(SECOND_GRADES) and not weights.get(name) and isinstance(value, int | float)
    }


@dataclass(frozen=True, slots=True)
class BaseTask:
    plays: int
    passes: int


@dataclass(frozen=True, slots=True)
class SecondVerifier:
    """Another version of the reward, which judged the same rollouts."""

    name: str
    success: SuccessRule
    ranges: Ranges = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnvironmentContext:
    """Unknown values are empty; detectors that need them raise no flags."""

    columns: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    """The largest share of each column in the highest reward."""
    lowest: float | None = None
    highest: float | None = None
    success: SuccessRule | None = None
    rules: Mapping[str, SuccessRule] = field(default_factory=dict)
    """Runs on several environments only: the success rule of each, by its name. Only traps use them, because other
    figures cannot be compared across environments."""
    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    """Declared ranges of the columns, by environment; under "" those of a run on one."""
    form_columns: frozenset[str] = frozenset(PLATFORM_COLUMNS)
    """Columns that reward the form of replies on purpose: declared by the manifest, or Proctor's own."""
    prompt: str = ""
    grader_words: frozenset[str] = frozenset()
    """Words of the reward's own code that are not in the prompt, in lower case."""
    base: Mapping[str, BaseTask] = field(default_factory=dict)
    second: SecondVerifier | None = None
    """The other version that judged rollouts of the run."""
    learned: Mapping[str, LearnedModel] = field(default_factory=dict)
    """Models trained on verdicts, by environment; under "" that of a run on one."""
    has_steps: bool = True
    """True for training runs. Evaluations come in batches, which are not steps."""

    def rule_of(self, row: "RolloutRow") -> SuccessRule | None:
        """The success rule of the rollout's own environment."""
        return self.rules.get(row.environment) if self.rules else self.success


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One completed rollout, as detectors read it."""

    id: uuid.UUID
    group: str
    task: str
    reward: float
    columns: Mapping[str, float]
    replies: tuple[str, ...]
    tokens_out: int
    stop_reason: str | None
    actions: tuple[Mapping[str, Any] | None, ...] = ()
    """As parsed from the replies."""
    step_rewards: tuple[Mapping[str, float], ...] = ()
    """Reward columns of each step."""
    prompts: tuple[str, ...] = ()
    """Messages to the policy, turn by turn, without the system prompt."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    second_reward: float | None = None
    """By another version of the reward, where the run was scored again."""
    second_columns: Mapping[str, float] = field(default_factory=dict)
    environment: str = ""
    """In which it was played, where the run plays several."""
    judge_score: float | None = None
    """Mean score of the judges that graded it, from 0 to 1."""

    @property
    def is_canary(self) -> bool:
        """Its task cannot be solved honestly."""
        return bool(self.metrics.get(CANARY))

    def meets(self, rule: SuccessRule | None) -> bool:
        """Whether the rollout succeeds; false if success is not defined."""
        if rule is None:
            return False
        value = self.reward if rule.column == REWARD else self.columns.get(rule.column, 0.0)
        return value >= rule.at_least - SAME_REWARD

    def passes_second(self, context: EnvironmentContext) -> bool | None:
        """Whether it succeeds by the second verifier's rule. None if not scored by it, or if success is not defined."""
        if self.second_reward is None or context.success is None:
            return None
        rule = context.second.success if context.second else context.success
        return replace(self, reward=self.second_reward, columns=self.second_columns).meets(rule)

    def second_grade(self, context: EnvironmentContext) -> float | None:
        """Return the mean grade by oracles, judges and a second verifier, usually from 0 to 1. None without one."""
        grades = list(oracle_grades({**self.metrics, **self.columns}, context.weights).values())
        if self.judge_score is not None:
            grades.append(self.judge_score)
        if (has_passed := self.passes_second(context)) is not None:
            grades.append(float(has_passed))
        return statistics.fmean(grades) if grades else None

    def mark_reply(self, turn: int = -1) -> list[Mark]:
        """Mark a whole reply, by default the last one."""
        return [Mark(range(len(self.replies))[turn], 0, len(self.replies[turn]))] if self.replies else []

    def flag(
        self,
        *,
        score: float,
        sentence: str,
        marks: Sequence[Mark] = (),
        cluster: str = "",
        severity: Severity = Severity.WARNING,
        **facts: object,
    ) -> FlagDraft:
        """Draft a flag about the rollout, with the marked text and further facts as evidence."""
        evidence: dict[str, Any] = {"rollouts": [str(self.id)], "reward": self.reward, **facts}
        if marks:
            first = marks[0]
            spans = [{"turn": mark.turn, "start": mark.start, "end": mark.end} for mark in marks[:MAX_SPANS]]
            evidence |= {"spans": spans, "excerpt": self.replies[first.turn][first.start : first.end][:80]}
        return FlagDraft("", str(self.id), severity, score, sentence, evidence, self.id, cluster=cluster[:200] or None)


@dataclass(frozen=True)
class Batch:
    """Completed rollouts of one step, or a batch of an evaluation."""

    rows: Sequence[RolloutRow]
    context: EnvironmentContext

    @cached_property
    def earning(self) -> set[uuid.UUID]:
        """Rollouts that earn at least the mean, and more than the lowest possible reward (unknown: 0 or less)."""
        mean, lowest = statistics.fmean(row.reward for row in self.rows), self.context.lowest
        least = min(row.reward for row in self.rows)
        if lowest is None:
            lowest = min(0.0, least)
        if self.is_unreadable:  # what every unreadable episode is given is not earned
            lowest = max(lowest, least)
        return {row.id for row in self.rows if row.reward >= mean and row.reward > lowest}

    @cached_property
    def is_unreadable(self) -> bool:
        """Whether most episodes were broken off by a reply that could not be read: the policy cannot write yet."""
        return statistics.fmean(row.stop_reason in BROKEN_OFF for row in self.rows) > 0.5

    def uncommon(self, found: Sequence[RolloutRow], common: float) -> Sequence[RolloutRow]:
        """Drop unrewarded rollouts if more than the `common` share of the batch shows the pattern, or if the policy
        cannot write yet."""
        if len(found) <= max(1.0, common * len(self.rows)) and not self.is_unreadable:
            return found
        return [row for row in found if row.id in self.earning]


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    step: int
    reward: float
    error: float
    """Standard error of the mean."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Means over the completed rollouts of one step."""

    step: int
    count: int
    reward: float
    columns: Mapping[str, float]
    tokens: float
    """Tokens that the policy wrote in an episode."""
    unparsable: float
    """Share of episodes that ended because a reply could not be read or was cut."""
    groups: int
    """Groups of several rollouts."""
    all_good: float
    """Share of those groups whose rewards are all equal and above the step's mean."""
    all_bad: float
    """Share of those groups whose rewards are all equal and not above it."""
    commonest: float
    """Share of episodes in which the policy wrote exactly the most common text."""
    passing: float = 0.0
    """Share of episodes that succeeded, if success is defined."""
    passing_tokens: float | None = None
    """Median of the tokens in those."""
    second_grade: float | None = None
    """Mean second grade of the graded episodes, if there are any."""
    best_novelty: float = 0.0
    """Mean novelty of the best quarter: the share of their word trigrams that no earlier step had."""


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """Impossible tasks of one step, in one environment or in all."""

    step: int
    played: int
    passed_ids: tuple[uuid.UUID, ...]
    environment: str = ""
    """Where the run plays several."""

    @property
    def passed(self) -> int:
        return len(self.passed_ids)


@dataclass(slots=True)
class RunView:
    """Grows step by step. Steps come in ascending order."""

    context: EnvironmentContext
    steps: list[StepFigures] = field(default_factory=list)
    recent: dict[int, list[RolloutRow]] = field(default_factory=dict)
    """Rollouts of the newest steps, by step."""
    heldout: list[HeldoutResult] = field(default_factory=list)
    canaries: list[CanaryFigures] = field(default_factory=list)
    """Figures of the steps with canaries, by environment if there are several. No other figure counts them."""
    outcomes: dict[str, BaseTask] = field(default_factory=dict)
    """Results of each task: of a whole evaluation, or of the newest steps of a training run."""
    verdicts: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """(passes, passes by the second verifier), where there is one."""
    novelty: dict[uuid.UUID, float] = field(default_factory=dict)
    """Of the newest step's rollouts: the share of their word trigrams that no earlier step had. Training runs only."""
    _known: set[int] = field(default_factory=set)
    """Hashes of all trigrams so far, up to MOST_KNOWN."""

    def add(self, step: int, rows: Sequence[RolloutRow]) -> None:
        """Add a step. One without completed rollouts is ignored."""
        played: defaultdict[str, list[RolloutRow]] = defaultdict(list)
        for row in rows:
            if row.is_canary and self.context.rule_of(row) is not None:
                played[row.environment].append(row)
        for environment, own in sorted(played.items()):
            passed = tuple(row.id for row in own if row.meets(self.context.rule_of(row)))
            self.canaries.append(CanaryFigures(step, len(own), passed, environment))
        rows = [row for row in rows if not row.is_canary]
        if not rows:
            return
        figures = figures_of(step, rows, self.context)
        self.steps.append(
            replace(figures, best_novelty=self._take_novelty(rows)) if self.context.has_steps else figures
        )
        self.recent[step] = rows
        for old in sorted(self.recent)[:-RECENT_STEPS]:
            del self.recent[old]
        if self.context.has_steps:
            self.outcomes, rows = {}, [row for kept in self.recent.values() for row in kept]
            self.verdicts = Counter()
        for row in rows:
            known = self.outcomes.get(row.task, BaseTask(0, 0))
            has_passed = row.meets(self.context.success)
            self.outcomes[row.task] = BaseTask(known.plays + 1, known.passes + has_passed)
            if (has_passed_second := row.passes_second(self.context)) is not None:
                self.verdicts[has_passed, has_passed_second] += 1

    def _take_novelty(self, rows: Sequence[RolloutRow]) -> float:
        """Note the novelty of each rollout and its trigrams. Returns the mean novelty of the best quarter.

        Numbers are alike, and a text of fewer than 8 trigrams counts as known.
        """
        new: set[int] = set()
        self.novelty = {}
        for row in rows:
            words = [
                "0" if word.isdigit() else word.lower()
                for reply in row.replies
                for word in _TOKEN.findall(reply[:NOVELTY_CHARACTERS])
            ]
            grams = {hash(gram) for gram in zip(words, words[1:], words[2:], strict=False)}
            self.novelty[row.id] = len(grams - self._known) / len(grams) if len(grams) >= FEWEST_GRAMS else 0.0
            new |= grams
        if len(self._known) < MOST_KNOWN:
            self._known |= new
        best = sorted(rows, key=lambda row: -row.reward)[: max(1, len(rows) // 4)]
        return statistics.fmean(self.novelty[row.id] for row in best)

    @property
    def newest(self) -> list[RolloutRow]:
        return self.recent[self.steps[-1].step] if self.steps else []

    def base(self) -> list[StepFigures]:
        return self.steps[:BASE_STEPS]

    def present(self) -> list[StepFigures]:
        return self.steps[-RECENT_STEPS:]

    def has_past(self) -> bool:
        """Whether there are enough steps to compare the present with the beginning."""
        return len(self.steps) >= BASE_STEPS + RECENT_STEPS

    def flag(
        self,
        *,
        score: float,
        sentence: str,
        rows: Iterable[RolloutRow],
        key: str = "run",
        severity: Severity = Severity.WARNING,
        window: Sequence[StepFigures | HeldoutResult] = (),
        series: Mapping[str, Sequence[float | None]] | None = None,
        **facts: object,
    ) -> FlagDraft:
        """Draft a flag about the newest step, with example rollouts, series by step and further facts."""
        evidence: dict[str, Any] = {"rollouts": [str(row.id) for row in islice(rows, SHOWN_ROLLOUTS)], **facts}
        if window:
            evidence["window"] = [window[0].step, window[-1].step]
        if series:
            evidence["series"] = {name: values[-SHOWN_STEPS:] for name, values in series.items()}
        return FlagDraft("", key, severity, score, sentence, evidence, training_step=self.steps[-1].step)


def row_of(id_: uuid.UUID, rollout: Rollout, environment: str = "") -> RolloutRow | None:
    """None for a failed rollout, which says nothing about the policy."""
    if rollout.reward is None:
        return None
    return RolloutRow(
        id=id_,
        group=f"{rollout.phase}/{rollout.group}",
        task=rollout.task.key,
        reward=rollout.reward,
        columns=rollout.columns,
        replies=tuple(step.reply for step in rollout.steps),
        tokens_out=rollout.tokens_out,
        stop_reason=rollout.stop_reason,
        actions=tuple(step.action for step in rollout.steps),
        step_rewards=tuple(step.rewards for step in rollout.steps),
        prompts=tuple(
            str(message.get("content") or "") for message in rollout.messages if message["role"] in {"user", "tool"}
        ),
        metrics=rollout.metrics,
        environment=environment,
    )


def figures_of(step: int, rows: Sequence[RolloutRow], context: EnvironmentContext) -> StepFigures:
    reward = statistics.fmean(row.reward for row in rows)
    groups = defaultdict(list)
    for row in rows:
        groups[row.group].append(row.reward)
    several = [rewards for rewards in groups.values() if len(rewards) > 1]
    flat = [rewards[0] for rewards in several if max(rewards) - min(rewards) <= SAME_REWARD]
    good = sum(value > reward for value in flat)
    [(_, commonest)] = Counter(row.replies for row in rows).most_common(1)
    passing = [row.tokens_out for row in rows if row.meets(context.success)]
    grades = [grade for row in rows if (grade := row.second_grade(context)) is not None]
    return StepFigures(
        step=step,
        count=len(rows),
        reward=reward,
        columns={name: statistics.fmean(row.columns.get(name, 0.0) for row in rows) for name in context.columns},
        tokens=statistics.fmean(row.tokens_out for row in rows),
        unparsable=sum(row.stop_reason in BROKEN_OFF for row in rows) / len(rows),
        groups=len(several),
        all_good=good / len(several) if several else 0.0,
        all_bad=(len(flat) - good) / len(several) if several else 0.0,
        commonest=commonest / len(rows),
        passing=len(passing) / len(rows),
        passing_tokens=statistics.median(passing) if passing else None,
        second_grade=statistics.fmean(grades) if grades else None,
    )


def context_of(manifest: Manifest, files: Mapping[str, str], *, has_steps: bool = True) -> EnvironmentContext:
    columns = manifest.columns
    lowest, highest = possible_rewards(columns)
    bests = {column.name: abs(column.weight * (column.range or (0.0, 1.0))[1]) for column in columns}
    total = sum(bests.values()) or 1.0
    prompt = f"{manifest.proctor.agent.system}\n{manifest.proctor.agent.observation}"
    return EnvironmentContext(
        columns=tuple(manifest.column_names),
        weights={column.name: column.weight for column in columns},
        shares={name: best / total for name, best in bests.items()},
        lowest=lowest,
        highest=highest,
        success=default_rule(manifest),
        ranges={"": declared_ranges(manifest)},
        form_columns=form_columns(manifest),
        prompt=prompt,
        grader_words=frozenset(words_of_grader(files)) - frozenset(_WORD.findall(prompt.lower())),
        has_steps=has_steps,
    )


def form_columns(*manifests: Manifest) -> frozenset[str]:
    """Return the columns that reward the form of replies on purpose: as declared in any manifest, and Proctor's own."""
    declared = (column.name for manifest in manifests for column in manifest.columns if column.form)
    return frozenset((*PLATFORM_COLUMNS, *declared))


def words_of_grader(files: Mapping[str, str]) -> set[str]:
    """Return the words in the reward columns' methods and in the lists of words that these methods read."""
    lists: dict[str, set[str]] = {}
    methods: list[ast.FunctionDef] = []
    for path, text in files.items():
        tree = parse_python(text) if path.endswith(".py") else None
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.FunctionDef) and any(
                getattr(mark, "id", getattr(mark, "attr", "")) == "column" for mark in node.decorator_list
            ):
                methods.append(node)
        for statement in tree.body if tree else ():
            if isinstance(statement, ast.Assign) and isinstance(name := statement.targets[0], ast.Name):
                words = {word for node in ast.walk(statement.value) for word in _words(node)}
                if 0 < len(words) <= MOST_WORDS:
                    lists[name.id] = words
    found: set[str] = set()
    for method in methods:
        body = method.body[1:] if ast.get_docstring(method) else method.body
        for node in chain.from_iterable(map(ast.walk, body)):
            found |= lists.get(node.id, set()) if isinstance(node, ast.Name) else _words(node)
    return found


def _words(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(_WORD.findall(node.value.lower()))
    return set()


def parse_python(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
