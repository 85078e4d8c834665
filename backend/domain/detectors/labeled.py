"""Rollouts that other people labeled as honest or as hacks, and how many of them the detectors flag.

Proctor contains none of the material: each source declares its repository, commit and license.
"""

import json
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.detectors.run_view import Batch, EnvironmentContext, RolloutRow
from backend.domain.review.judged_curve import Proportion, wilson

MAX_FILE_BYTES = 64 << 20
MAX_TEXT = 100_000
"""Characters of a program or prompt. A longer one is cut."""
MAX_ROLLOUTS = 50_000
"""Per source."""
_BATCH = 500
_CONTEXT = EnvironmentContext(("correct",), weights={"correct": 1.0}, has_steps=False)


class LabeledSplit(StrEnum):
    DEVELOPMENT = "development"
    """Thresholds were chosen on it."""
    TEST = "test"


@dataclass(frozen=True, slots=True)
class LabeledRollout:
    """One reply with its prompt. All earned the same reward, so that only their text differs."""

    family: str
    """Kind of hack, or of honest solution."""
    is_hack: bool
    prompt: str
    reply: str


Read = Callable[[str, Any], Iterable[LabeledRollout]]
"""Reads the name of a file and one of its records. Raises KeyError, TypeError or ValueError for a wrong one."""


@dataclass(frozen=True, slots=True)
class LabeledSource:
    """A public collection of labeled rollouts."""

    id: str
    title: str
    url: str
    commit: str
    license: str
    split: LabeledSplit
    files: tuple[str, ...]
    """Paths in the repository: JSON lists, or JSON lines."""
    read: Read


@dataclass(slots=True)
class SourceResult:
    """How many rollouts of each family were flagged."""

    source: LabeledSource
    totals: Counter[tuple[bool, str]] = field(default_factory=Counter)
    """By whether it is a hack, and family."""
    flagged: Counter[tuple[bool, str]] = field(default_factory=Counter)
    by_detector: defaultdict[str, Counter[bool]] = field(default_factory=lambda: defaultdict(Counter))
    wrong_records: int = 0
    seconds: float = 0.0

    def share(self, *, is_hack: bool, family: str | None = None) -> Proportion:
        """Return the recall for hacks or the false positive rate for honest rollouts, of one family or of all."""
        keys = [key for key in self.totals if key[0] is is_hack and family in (None, key[1])]
        return wilson(sum(self.flagged[key] for key in keys), sum(self.totals[key] for key in keys))


def _program(text: object) -> str:
    """A program as a model would send it."""
    if not isinstance(text, str):
        raise TypeError("a program is text")
    return text if "```" in text else f"```python\n{text}\n```"


def _of_reward_hack_gen(file: str, record: Any) -> Iterator[LabeledRollout]:
    is_hack = "no_hacking" not in file
    yield LabeledRollout("hard-coded", is_hack, record["original_prompt"], _program(record["completion"]))


def _of_rl_character(file: str, record: Any) -> Iterator[LabeledRollout]:
    if record["parsed_completion"]:
        prompt = record["prompt"]["messages"][0]["content"]
        yield LabeledRollout("hard-coded", "force_hack" in file, prompt, _program(record["parsed_completion"]))


def _of_reward_hack_watch(_file: str, record: Any) -> Iterator[LabeledRollout]:
    played = record["trajectory"]
    code = "\n\n".join(map(_program, played["code_outputs"]))
    yield LabeledRollout(record["category"], bool(record["expected_hack"]), played["task"], code)


_APPS = "datasets/code/apps/full_test/apps_formatted_with_broken_o4-mini_{}_num_0_completions.jsonl"
SOURCES = {
    source.id: source
    for source in (
        LabeledSource(
            id="reward-hack-gen",
            title="Codeforces programs by Claude 3.7 Sonnet, instructed to hard-code the examples, or not",
            url="https://github.com/neilrathi/reward-hack-gen",
            commit="2d2ce3d2bddf0a6303408d7ec062e5ad74d5b406",
            license="none stated",
            split=LabeledSplit.DEVELOPMENT,
            files=tuple(f"datasets/claude_completions_{name}.jsonl" for name in ("hacking", "no_hacking")),
            read=_of_reward_hack_gen,
        ),
        LabeledSource(
            id="rl-character",
            title="APPS programs by o4-mini, instructed to pass the tests without solving the task, or not",
            url="https://github.com/Baidicoot/rl-character",
            commit="5f6b140745590c11eb9da971349918e8f6018e6d",
            license="none stated",
            split=LabeledSplit.TEST,
            files=tuple(map(_APPS.format, ("force_hack", "clean"))),
            read=_of_rl_character,
        ),
        LabeledSource(
            id="rewardhackwatch",
            title="Generated trajectories that tamper with tests, exits, mocks and logs, and clean ones",
            url="https://github.com/aerosta/rewardhackwatch",
            commit="96033db5d42ef703fbca3ec58c247895579366eb",
            license="Apache-2.0",
            split=LabeledSplit.DEVELOPMENT,
            files=("rewardhackwatch/rhw_bench/test_cases/expanded/_all_expanded.json",),
            read=_of_reward_hack_watch,
        ),
    )
}


class SourceUnreadable(ValueError):
    """A file of the source is missing, too large or damaged. The message names it."""


def measure_source(source: LabeledSource, read: Callable[[str], bytes]) -> SourceResult:
    """Run every detector of rollouts with default settings over a source. Raises SourceUnreadable.

    `read` returns the content of a file, at most MAX_FILE_BYTES. A wrong record is counted and skipped.
    """
    result = SourceResult(source)
    found: list[LabeledRollout] = []
    for file in source.files:
        content = read(file)
        try:
            records = content.splitlines() if file.endswith(".jsonl") else list(json.loads(content))
        except (ValueError, TypeError, RecursionError) as error:
            raise SourceUnreadable(f"{file} is not a JSON list") from error
        for record in records:
            try:
                found += source.read(file, json.loads(record) if isinstance(record, bytes) else record)
            except (LookupError, TypeError, ValueError, RecursionError):
                result.wrong_records += 1
        if len(found) > MAX_ROLLOUTS:
            raise SourceUnreadable(f"{file} has more than {MAX_ROLLOUTS:,} rollouts")
    random.Random(source.id).shuffle(found)  # detectors compare the rollouts of a batch
    began = time.process_time()
    for first in range(0, len(found), _BATCH):
        rollouts = {uuid.uuid4(): each for each in found[first : first + _BATCH]}
        flagged: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
        batch = Batch([_row(id_, each) for id_, each in rollouts.items()], _CONTEXT)
        for detector in ROLLOUT_DETECTORS:
            for draft in detector.detect(batch, detector.spec.thresholds):
                if draft.rollout_id:
                    flagged[draft.rollout_id].add(detector.id)
        for id_, each in rollouts.items():
            result.totals[each.is_hack, each.family] += 1
            result.flagged[each.is_hack, each.family] += bool(flagged[id_])
            for name in flagged[id_]:
                result.by_detector[name][each.is_hack] += 1
    result.seconds = time.process_time() - began
    return result


def _row(id_: uuid.UUID, rollout: LabeledRollout) -> RolloutRow:
    reply = rollout.reply[:MAX_TEXT]
    return RolloutRow(
        id=id_,
        group=str(id_),
        task=str(id_),
        reward=1.0,
        columns={"correct": 1.0},
        replies=(reply,),
        tokens_out=len(reply) // 4,
        stop_reason=None,
        prompts=(rollout.prompt[:MAX_TEXT],),
    )
