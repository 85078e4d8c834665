"""Measure the learned detector on labeled rollouts of other people: within a family, and on families it has not seen.

    python -m benchmarks.learned rl-character=FOLDER reward-hack-gen=FOLDER djinn=FOLDER silent-hacks=FOLDER

Labels take the place of verdicts. *Within*: tasks (different prompts) are divided into five parts; a detector is
trained on four, at its default bound, and flags the fifth. *Transfer*: it is trained on all rollouts of other families.
Recall and false positives are those on rollouts that were not used for training, with Wilson's 95% limits. `built-in`
are all other detectors of rollouts on the same rollouts.

Features, penalty and number of weights were chosen on the families of development. Nothing is executed.
"""

import argparse
import hashlib
import random
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from backend.domain.detectors.catalogue.learned import SPEC
from backend.domain.detectors.features import features_of
from backend.domain.detectors.labeled import MAX_TEXT, SOURCES, LabeledRollout, LabeledSplit, read_source
from backend.domain.detectors.learned_model import LabeledFeatures, LearnedModel, NotTrainable, text_key, train
from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.detectors.run_view import Batch, EnvironmentContext, RolloutRow
from backend.domain.statistics import Proportion, wilson

PARTS = 5
console = Console(width=None if sys.stdout.isatty() else 180)
_CONTEXT = EnvironmentContext(("correct",), weights={"correct": 1.0}, has_steps=False)


@dataclass(frozen=True, slots=True)
class Labeled:
    source: str
    family: str
    split: LabeledSplit
    row: RolloutRow
    example: LabeledFeatures
    by_others: bool
    """Flagged by another detector of rollouts."""

    @property
    def part(self) -> int:
        return int(self.example.task[:8], 16) % PARTS


Scenario = tuple[str, Sequence[Labeled], Sequence[Labeled]]
"""Name, rollouts to train on, rollouts to flag. If both are the same, parts take turns."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE=FOLDER")
    parser.add_argument("--only", default="", help="scenarios whose name contains this text")
    parser.add_argument(
        "--padding", type=int, default=0, help="honest replies of other tasks appended to each tested hack. Default: 0"
    )
    options = parser.parse_args()
    began = time.process_time()
    labeled = [each for text in options.sources for each in read(*text.split("=", 1))]
    seconds = time.process_time() - began
    table = Table(
        "", "train", "hacks", "learned", "built-in", "either", "honest", "learned ", "built-in ", "expected recall"
    )
    for name, known, new in scenarios(labeled):
        if options.only in name:
            table.add_row(*measure(name, known, new, options.padding))
    console.print(table)
    console.print(
        f"{1000 * seconds / max(len(labeled), 1):.1f} ms of CPU per rollout to read it and to find all features"
    )
    return 0


def read(source: str, folder: str) -> Iterator[Labeled]:
    def files(pattern: str) -> Iterator[tuple[str, bytes]]:
        for path in sorted(Path(folder).glob(pattern)):
            yield path.relative_to(folder).as_posix(), path.read_bytes()

    found, _ = read_source(SOURCES[source], files)
    for first in range(0, len(found), 500):
        part = found[first : first + 500]
        rows = [_row(each) for each in part]
        batch = Batch(rows, _CONTEXT)
        flagged = {
            draft.rollout_id
            for detector in ROLLOUT_DETECTORS
            for draft in detector.detect(batch, detector.spec.thresholds)
        }
        for each, row in zip(part, rows, strict=True):
            example = LabeledFeatures(frozenset(features_of(row)), each.is_hack, row.task, text_key(row.replies))
            split = SOURCES[source].split_of(each.family)
            yield Labeled(source, each.family, split, row, example, row.id in flagged)


def _row(rollout: LabeledRollout) -> RolloutRow:
    reply = rollout.reply[:MAX_TEXT]
    return RolloutRow(
        id=uuid.uuid4(),
        group="",
        task=hashlib.sha256(rollout.prompt.encode("utf-8", "replace")).hexdigest(),
        reward=1.0,
        columns={"correct": 1.0},
        replies=(reply,),
        tokens_out=len(reply) // 4,
        stop_reason=None,
        prompts=(rollout.prompt[:MAX_TEXT],),
    )


def scenarios(labeled: Sequence[Labeled]) -> Iterator[Scenario]:
    families: dict[tuple[str, str], list[Labeled]] = {}
    for each in labeled:
        name = each.family.partition(":")[0] if each.source == "silent-hacks" else each.family
        families.setdefault((each.source, name if each.source != "djinn" else "all families"), []).append(each)
    for (source, name), group in families.items():
        yield f"within {source}, {name} ({group[0].split})", group, group
    names = {each.source for each in labeled}
    for source in names & {"rl-character", "silent-hacks"}:
        own = [each for each in labeled if each.source == source]
        known = [each for each in own if each.split is LabeledSplit.DEVELOPMENT]
        yield f"{source}: development → test", known, [each for each in own if each.split is LabeledSplit.TEST]
    code = [each for each in labeled if each.source in {"rl-character", "reward-hack-gen"}]
    known = [each for each in code if each.split is LabeledSplit.DEVELOPMENT]
    for target in names - {"reward-hack-gen"}:
        new = [each for each in labeled if each.source == target and each.split is LabeledSplit.TEST]
        if new and known:
            yield f"hard-coded programs of development → {target}, test", known, new
    if "djinn" in names:
        kinds = sorted({each.family for each in labeled if each.source == "djinn"})
        for number in range(2):
            chosen = set(kinds[number::2])
            own = [each for each in labeled if each.source == "djinn"]
            known = [each for each in own if each.family not in chosen]
            yield (
                f"djinn: half of the families → the others ({number + 1})",
                known,
                [e for e in own if e.family in chosen],
            )


def measure(name: str, known: Sequence[Labeled], new: Sequence[Labeled], padding: int = 0) -> tuple[str, ...]:
    flagged: dict[uuid.UUID, bool] = {}
    expected = []
    rounds = range(PARTS) if known is new else range(1)
    for part in rounds:
        inside = [each.example for each in known if known is not new or each.part != part]
        outside = [each for each in new if known is not new or each.part == part]
        model = fit(inside)
        if isinstance(model, str):
            return (name, f"{len(inside):,}: {model}", *[""] * 8)
        point = model.report.operating_point(SPEC.thresholds["rate"], SPEC.thresholds["confidence"])
        if point and point.recall.value is not None:
            expected.append(point.recall.value)
        dice, honest = random.Random(part), [each.row.replies[0] for each in known if not each.example.is_hack]
        rows = []
        for each in outside:
            more = dice.choices(honest, k=padding if each.example.is_hack else 0)
            rows.append(replace(each.row, replies=("\n".join([*each.row.replies, *more]),)))
        batch = Batch(rows, replace(_CONTEXT, learned={"": model}))
        [detector] = [each for each in ROLLOUT_DETECTORS if each.id == SPEC.id]
        by_learned = {draft.rollout_id for draft in detector.detect(batch, SPEC.thresholds)}
        flagged |= {each.row.id: each.row.id in by_learned for each in outside}

    def share(is_hack: bool, kind: str) -> str:
        chosen = [each for each in new if each.example.is_hack is is_hack]
        by = {"learned": lambda e: flagged[e.row.id], "built-in": lambda e: e.by_others}
        by["either"] = lambda e: by["learned"](e) or by["built-in"](e)
        return show(wilson(sum(map(by[kind], chosen)), len(chosen)))

    hacks, honest = (sum(each.example.is_hack is kind for each in new) for kind in (True, False))
    size = f"{sum(e.is_hack for e in inside):,} + {sum(not e.is_hack for e in inside):,}"
    recall = f"{sum(expected) / len(expected):.1%}" if expected else "silent"
    shares = [share(True, kind) for kind in ("learned", "built-in", "either")]
    return (name, size, f"{hacks:,}", *shares, f"{honest:,}", share(False, "learned"), share(False, "built-in"), recall)


def fit(examples: Iterable[LabeledFeatures]) -> LearnedModel | str:
    try:
        return train(examples, datetime.now(UTC))
    except NotTrainable as error:
        return str(error)


def show(share: Proportion) -> str:
    return "–" if share.value is None else f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"


if __name__ == "__main__":
    sys.exit(main())
