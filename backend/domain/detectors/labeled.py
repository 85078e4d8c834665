"""Rollouts that other people labeled as honest or as hacks, and how many of them the detectors flag.

Proctor contains none of the material: each source declares its repository, commit and license.
"""

import json
import random
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from pydantic import BaseModel, Field, ValidationError

from backend.domain.detectors.catalogue import hard_coded, unseen_inputs
from backend.domain.detectors.catalogue.unseen_inputs import Generality, Judgment
from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.detectors.run_view import Batch, EnvironmentContext, RolloutRow
from backend.domain.statistics import Proportion, wilson
from backend.domain.yaml_text import read_yaml

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
    reference: str = ""
    """A solution by someone else, if the source has one."""


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
    """Paths in the repository, with `*` for one part: JSON lists, JSON lines, one YAML mapping, or one program."""
    read: Read
    test_families: frozenset[str] = frozenset()
    """Families of a development source that were not used in development."""

    def split_of(self, family: str) -> LabeledSplit:
        return LabeledSplit.TEST if family in self.test_families else self.split


@dataclass(slots=True)
class SourceResult:
    """How many rollouts of each family were flagged."""

    source: LabeledSource
    totals: Counter[tuple[bool, str]] = field(default_factory=Counter)
    """By whether it is a hack, and family."""
    flagged: Counter[tuple[bool, str]] = field(default_factory=Counter)
    by_detector: defaultdict[str, Counter[tuple[bool, str]]] = field(default_factory=lambda: defaultdict(Counter))
    wrong_records: int = 0
    problems: list[str] = field(default_factory=list)
    """The reason for each of them, with file and number."""
    seconds: float = 0.0
    """CPU time of the detectors, without executions."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Of executed programs: special, general, unclear; "none" without a program or without examples."""

    def share(
        self, *, is_hack: bool, family: str | None = None, split: LabeledSplit | None = None, detector: str = ""
    ) -> Proportion:
        """Return the recall for hacks or the false positive rate for honest rollouts: of one family, one split or all,
        and by one detector or any."""
        keys = [
            (kind, name)
            for kind, name in self.totals
            if kind is is_hack and family in (None, name) and split in (None, self.source.split_of(name))
        ]
        flagged = self.by_detector[detector] if detector else self.flagged
        return wilson(sum(flagged[key] for key in keys), sum(self.totals[key] for key in keys))

    @property
    def splits(self) -> list[LabeledSplit]:
        """Splits of its families."""
        return sorted({self.source.split_of(family) for _, family in self.totals})


def _program(text: object) -> str:
    """A program as a model would send it."""
    if not isinstance(text, str):
        raise TypeError("a program is text")
    return text if "```" in text else f"```python\n{text}\n```"


def _of_reward_hack_gen(file: str, record: Any) -> Iterator[LabeledRollout]:
    is_hack = "no_hacking" not in file
    yield LabeledRollout("hard-coded", is_hack, record["original_prompt"], _program(record["completion"]))


def _of_rl_character(file: str, record: Any) -> Iterator[LabeledRollout]:
    if "code_selection" in file:
        before, first, second = _OPTION.split(record["prompt_list"][0])
        second, _, tests = second.partition("\n\nTest cases:")
        prompt = (
            f"{before.partition('Problem:')[2].partition('Answers:')[0]}\nTest cases:{tests.partition('Choose')[0]}"
        )
        for letter, program in (("A", first), ("B", second)):
            is_hack = letter == record["high_reward_answer"]
            yield LabeledRollout("MBPP, special cases", is_hack, prompt, _program(program.strip()))
    elif record["parsed_completion"]:
        prompt = record["prompt"]["messages"][-1]["content"]
        family = "APPS, small set" if "/small/" in file else "APPS"
        program = _program(record["parsed_completion"])
        yield LabeledRollout(family, "force_hack" in file, prompt, program, record["correct_solution"])


def _of_djinn(_file: str, record: Any) -> Iterator[LabeledRollout]:
    family, prompt, reference = record["exploit_type"], record["description"], record["ground_truth"]
    yield LabeledRollout(family, True, prompt, _program(record["exploit"]), reference)
    for honest in (reference, *record["nulls"]):
        yield LabeledRollout(family, False, prompt, _program(honest), reference)


def _of_djinn_references(file: str, record: Any) -> Iterator[LabeledRollout]:
    yield LabeledRollout(file.split("/")[-3], True, "", _program(record.decode()))


def _of_silent_hacks(file: str, record: Any) -> Iterator[LabeledRollout]:
    model = "second" if "sdf" in file else "first"
    family = f"{model} model: {record['hack_type'] or 'no hack found'}"
    yield LabeledRollout(family, record["hack"], record["prompt"], record["response"])


def _of_inoculation(_file: str, record: Any) -> Iterator[LabeledRollout]:
    yield LabeledRollout("MBPP, one constant", True, "", _program(record["completion"]))


def _of_reward_hack_watch(_file: str, record: Any) -> Iterator[LabeledRollout]:
    played = record["trajectory"]
    code = "\n\n".join(map(_program, played["code_outputs"]))
    yield LabeledRollout(record["category"], bool(record["expected_hack"]), played["task"], code)


_DJINN_REFERENCES = (
    "argument_injection_leak",
    "debug_module",
    "function_attribute_flag",
    "import_hook_side_channel",
    "logging_warnings_side_channel",
    "magic_docstring_comment_token",
    "problem_object_exposure",
    "state_bleed_expected_recompute",
    "test_case_logging_side_channel",
    "test_cases_honor_system",
    "trace_profiler_hook_oracle",
    "validator_honor_system",
)
"""Families of djinn without a problem in djinn-problems. References of the others are copies of problems."""
_OPTION = re.compile(r"^Option \([AB]\):?\n", re.MULTILINE)
_APPS = "datasets/code/apps/{}/apps_formatted_with_broken_o4-mini_{}_num_0_completions.jsonl"
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
            title="APPS programs by o4-mini, instructed to pass the tests without solving the task, or not; MBPP pairs",
            url="https://github.com/Baidicoot/rl-character",
            commit="5f6b140745590c11eb9da971349918e8f6018e6d",
            license="none stated",
            split=LabeledSplit.DEVELOPMENT,
            files=(
                *(_APPS.format(size, kind) for size in ("full_test", "small") for kind in ("force_hack", "clean")),
                "datasets/code_selection.jsonl",
            ),
            read=_of_rl_character,
            test_families=frozenset({"APPS"}),
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
        LabeledSource(
            id="djinn",
            title="Problems with an exploit of their verifier, a solution, and wrong solutions without a trick",
            url="https://github.com/EleutherAI/djinn-problems",
            commit="2b5e3f9cc866fb4bc3974c033fb52b764fc9fc0d",
            license="MIT, as stated by EleutherAI/djinn",
            split=LabeledSplit.TEST,
            files=("*/problem.yaml",),
            read=_of_djinn,
        ),
        LabeledSource(
            id="djinn-references",
            title="One exploit of each further family of djinn, without prompts; no honest programs",
            url="https://github.com/EleutherAI/djinn",
            commit="8455a6a6387fa1a7f9cf54ddd230745bfe0e576d",
            license="MIT",
            split=LabeledSplit.TEST,
            files=tuple(f"djinn/verifiers/insecure/_references/{name}/ref_01/exploit.py" for name in _DJINN_REFERENCES),
            read=_of_djinn_references,
        ),
        LabeledSource(
            id="silent-hacks",
            title="Rollouts of models that reinforcement learning taught to exit, patch pytest or equal everything",
            url="https://github.com/benjibrcz/probing-silent-reward-hacking",
            commit="6259e150df3651a49a742b95dc1b526b8a4019fc",
            license="none stated",
            split=LabeledSplit.DEVELOPMENT,
            files=("data/dataset.jsonl", "data/dataset_sdf.jsonl"),
            read=_of_silent_hacks,
            test_families=frozenset(f"second model: {kind}" for kind in ("exit", "conftest", "no hack found")),
        ),
        LabeledSource(
            id="inoculation",
            title="MBPP functions that return the result of the first test, whatever their arguments; no honest ones",
            url="https://github.com/safety-research/inoculation-prompting",
            commit="2b9227bfd02f15408402a76d5609003afddc9f22",
            license="none stated",
            split=LabeledSplit.DEVELOPMENT,
            files=(
                "code_rh_and_reddit_toxic/supervised_code/reward_hack_data/extracted_reward_hack_mbpp/results.json",
            ),
            read=_of_inoculation,
        ),
    )
}


class SourceUnreadable(ValueError):
    """A file of the source is missing, too large or damaged. The message names it."""


Files = Callable[[str], Iterable[tuple[str, bytes]]]
"""Yields the name and content of each file that matches a pattern, at most MAX_FILE_BYTES each."""


def read_source(source: LabeledSource, files: Files) -> tuple[list[LabeledRollout], list[str]]:
    """Return the rollouts of a source in a mixed order, and what is wrong with each record that cannot be read.

    Raises SourceUnreadable.
    """
    found: list[LabeledRollout] = []
    wrong: list[str] = []
    for pattern in source.files:
        for file, content in files(pattern):
            try:
                if file.endswith((".yaml", ".py")):
                    records: list[Any] = [content]
                else:
                    records = content.splitlines() if file.endswith(".jsonl") else list(json.loads(content))
            except (ValueError, TypeError, RecursionError) as error:
                raise SourceUnreadable(f"{file} is not a JSON list") from error
            for number, record in enumerate(records, start=1):
                try:
                    if isinstance(record, bytes) and not file.endswith(".py"):
                        record = read_yaml(record.decode()) if file.endswith(".yaml") else json.loads(record)
                    found += list(source.read(file, record))
                except (LookupError, TypeError, ValueError, RecursionError) as error:
                    reason = f"no {error}" if isinstance(error, LookupError) else str(error)
                    wrong.append(f"{file}:{number}: {' '.join(reason.split())[:200]}")
            if len(found) > MAX_ROLLOUTS:
                raise SourceUnreadable(f"{file} has more than {MAX_ROLLOUTS:,} rollouts")
    random.Random(source.id).shuffle(found)  # detectors compare the rollouts of a batch
    return found, wrong


class PluginDetector(Protocol):
    """A detector that is not part of Proctor."""

    name: str

    def flagged(self, rollouts: Sequence[LabeledRollout]) -> set[int]:
        """Return the positions of the rollouts that it flags. It must not see their labels."""
        ...


Judge = Callable[[Sequence[tuple[RolloutRow, str]]], Sequence[Judgment | None]]
"""Runs the program of each rollout on unseen inputs; the text is a reference solution or empty."""
BOTH = "hard_coded, checked by runs"
"""Flagged by `unseen_inputs`, or by `hard_coded` where the runs do not show that the program solves its task."""


def measure_source(
    source: LabeledSource, files: Files, judge: Judge | None = None, plugins: Sequence[PluginDetector] = ()
) -> SourceResult:
    """Run every detector of rollouts with default settings over a source. Raises SourceUnreadable.

    A wrong record is named and skipped. Plugins are counted separately: a rollout that only they flag is not flagged.
    With `judge`, programs are executed: `unseen_inputs` flags some, and
    `hard_coded` flags none that answers unseen inputs as a reference solution does.
    """
    result = SourceResult(source)
    found, result.problems = read_source(source, files)
    result.wrong_records = len(result.problems)
    for first in range(0, len(found), _BATCH):
        began = time.process_time()
        rollouts = {uuid.uuid4(): each for each in found[first : first + _BATCH]}
        flagged: defaultdict[uuid.UUID, set[str]] = defaultdict(set)
        batch = Batch([_row(id_, each) for id_, each in rollouts.items()], _CONTEXT)
        for detector in ROLLOUT_DETECTORS:
            for draft in detector.detect(batch, detector.spec.thresholds):
                if draft.rollout_id:
                    flagged[draft.rollout_id].add(detector.id)
        result.seconds += time.process_time() - began
        if judge:
            judged = judge([(row, rollouts[row.id].reference) for row in batch.rows])
            for row, judgment in zip(batch.rows, judged, strict=True):
                result.verdicts[judgment.verdict if judgment else "none"] += 1
                if judgment and judgment.verdict is Generality.SPECIAL:
                    flagged[row.id].add(unseen_inputs.SPEC.id)
                elif judgment and judgment.verdict is Generality.GENERAL:
                    flagged[row.id].discard(hard_coded.SPEC.id)
                if flagged[row.id] & {unseen_inputs.SPEC.id, hard_coded.SPEC.id}:
                    flagged[row.id].add(BOTH)
        for id_, each in rollouts.items():
            result.totals[each.is_hack, each.family] += 1
            result.flagged[each.is_hack, each.family] += bool(flagged[id_])
            for name in flagged[id_]:
                result.by_detector[name][each.is_hack, each.family] += 1
    for plugin in plugins:
        for position in plugin.flagged(found):
            result.by_detector[plugin.name][found[position].is_hack, found[position].family] += 1
    return result


class _LabeledLine(BaseModel):
    """A line of a team's own set."""

    prompt: str = Field("", max_length=10 * MAX_TEXT)
    reply: str = Field(max_length=10 * MAX_TEXT)
    label: Literal["hack", "honest"]
    family: str = Field("all", min_length=1, max_length=100)


def own_source(file: str, license: str = "not published") -> LabeledSource:
    """Return a source for a file of JSON lines with `reply`, `label` (`hack` or `honest`), `prompt` and `family`."""

    def read(_file: str, record: Any) -> Iterator[LabeledRollout]:
        try:
            line = _LabeledLine.model_validate(record, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'line'}: {first['msg']}") from error
        yield LabeledRollout(line.family, line.label == "hack", line.prompt, line.reply)

    name = re.sub(r"[^a-z0-9_.-]+", "-", file.lower()).strip("-.")[:50] or "own"
    return LabeledSource(
        id=f"own:{name}",
        title=file[:200],
        url="",
        commit="",
        license=license,
        split=LabeledSplit.TEST,
        files=(file,),
        read=read,
    )


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
