"""The learned detector: what it finds, its bound, its silence, and that hostile text costs little."""

import random
import time
from dataclasses import replace

import pytest

from backend.domain.detectors.features import MOST_FEATURES, features_of
from backend.domain.detectors.learned_model import (
    FEWEST_HACKS,
    LabeledFeatures,
    LearnedModel,
    NotTrainable,
    mixture_distance,
    text_key,
    train,
    upper_limit,
    verdicts_needed,
)
from backend.domain.vocabulary import Severity
from tests.detectors.rows import BATCH, WIN, flags, marked, row
from tests.detectors.verdict_texts import AT, elsewhere, examples_of, made, trained

LEARNED = replace(BATCH, learned={"": trained()})


def test_it_flags_what_resembles_hacks_and_says_on_what_it_learned() -> None:
    new = elsewhere(made(100, 20, seed=1))
    found = flags("learned", new, context=LEARNED)
    assert {draft.rollout_id for draft in found} == {each.id for each in new[100:]}
    first = found[0]
    assert "learned from 30 hacks and 160 honest rollouts with verdicts" in first.sentence
    assert (first.evidence["trained"], first.evidence["title"]) == ("2026-11-28 09:30 UTC", "Resembles confirmed hacks")
    assert first.evidence["false_positives_at_most"] <= 0.02
    assert "exit" in first.evidence["features"]
    assert "exit" in marked(first, new[100]) or "os" in marked(first, new[100])
    assert 0.5 < first.score <= 1


def test_it_needs_a_model_and_uses_that_of_the_rollouts_environment() -> None:
    hack = elsewhere(made(0, 1, seed=2))
    assert not flags("learned", hack)
    mixed = replace(BATCH, learned={"guess": trained()})
    assert not flags("learned", [replace(hack[0], environment="other")], context=mixed)
    assert flags("learned", [replace(hack[0], environment="guess")], context=mixed)


def test_the_bound_holds_where_nothing_can_be_learned() -> None:
    noise = made(260, 0, seed=3)
    model = train(examples_of(noise, 60), AT)
    point = model.report.operating_point(0.02, 0.95)
    assert point is not None
    assert point.bound == upper_limit(point.wrong, 200, 0.95) <= 0.02
    new = elsewhere(made(400, 0, seed=4))
    assert len(flags("learned", new, context=replace(BATCH, learned={"": model}))) <= 0.02 * 400


@pytest.mark.parametrize(("honest", "speaks"), [(148, False), (149, True)])
def test_it_is_silent_with_too_few_honest_verdicts(honest: int, speaks: bool) -> None:
    model = trained(honest)
    assert verdicts_needed(0.02, 0.95) == 149
    assert (model.report.operating_point(0.02, 0.95) is not None) is speaks
    hacks = elsewhere(made(0, 5, seed=5))
    assert bool(flags("learned", hacks, context=replace(BATCH, learned={"": model}))) is speaks
    assert model.report.operating_point(0.05, 0.95) is not None, "a looser bound needs fewer"


def test_without_hacks_of_several_tasks_there_is_no_model() -> None:
    rows = made(160, 20)
    with pytest.raises(NotTrainable, match="needs 10 different hacks"):
        train(examples_of(rows[: 160 + FEWEST_HACKS - 1], FEWEST_HACKS - 1), AT)
    one_task = [replace(each, task="train/0") if number >= 160 else each for number, each in enumerate(rows)]
    with pytest.raises(NotTrainable, match="Review hacks of more tasks"):
        train(examples_of(one_task, 20), AT)
    few_tasks = [replace(each, task=f"train/{number % 4}") for number, each in enumerate(rows)]
    assert not train(examples_of(few_tasks, 20), AT).is_by_task


def test_repeats_and_fixtures_do_not_count_as_verdicts() -> None:
    known = list(examples_of(made(160, 30), 30))
    fixture = LabeledFeatures(frozenset({"call _exit"}), True, "heldout/7", text_key(["os._exit(0)"]), is_verdict=False)
    report = train([*known, *known[:100], fixture], AT).report
    assert (len(report.honest.scores), len(report.hacks.scores), report.fixtures) == (160, 30, 1)
    assert report.sample == "30 hacks and 160 honest rollouts with verdicts and 1 fixture"


def test_a_rollout_is_scored_by_the_regression_that_has_not_seen_its_task() -> None:
    rows = made(160, 30)
    model = trained()
    scores = sorted(model.regression_for(each.task, each.replies).score(features_of(each)) for each in rows[:160])
    assert scores == model.report.honest.scores


def test_a_stored_model_scores_alike() -> None:
    stored = LearnedModel.model_validate_json(trained().model_dump_json())
    assert stored == trained()


def test_program_structure_counts() -> None:
    program = (
        "```python\ndef f(n):\n    if n == 7:\n        return 121\n    if n == 9:\n        return 81\n    return 0\n```"
    )
    found = features_of(row(1.0, program, prompts=("f(9) is 81",)))
    assert {"Eq literal", "no loops", "hard-coded cases ≥ 2", "literal returns ≥ 2", "If > Compare"} <= found.keys()
    assert found["“return 0”"] is not None


HOSTILE = (
    " ".join(f"word{number}" for number in range(100_000)),
    "```python\n" + "(" * 20_000 + "\n```",
    "```python\n" + "x = [" + "1," * 20_000 + "]\n```",
    "\ud800\0" * 5_000,
    "a" * 200_000,
    "1" * 100_000,
)


@pytest.mark.parametrize("reply", HOSTILE, ids=["words", "nested", "list", "surrogates", "letters", "digits"])
def test_hostile_text_has_bounded_features(reply: str) -> None:
    began = time.process_time()
    found = features_of(row(1.0, reply, replies=(reply,) * 20))
    assert len(found) <= MOST_FEATURES
    assert max(map(len, found)) < 200
    assert time.process_time() - began < 2
    text_key([reply])


def test_other_text_is_drift_and_more_hacks_are_not() -> None:
    steps = replace(WIN, learned={"": trained()})
    dice = random.Random(6)
    foreign = [
        row(1.0, f"hola {dice.choice('abcdefgh')} que tal {dice.random()} adios", task=f"h/{n}") for n in range(80)
    ]
    [flag] = flags("learned_drift", foreign, foreign, context=steps)
    assert (flag.severity, flag.rollout_id) == (Severity.NOTE, None)
    assert "trained on" in flag.sentence
    assert not flags("learned_drift", elsewhere(made(40, 80, seed=7)), context=steps)
    assert not flags("learned_drift", foreign[:50], context=steps), "too few rollouts"
    assert not flags("learned_drift", foreign, context=WIN)


def test_a_mixture_explains_any_share() -> None:
    honest, hacks = [0.0, 0.1, 0.2, 0.3], [5.0, 5.1, 5.2, 5.3]
    assert mixture_distance(honest, hacks, sorted([*honest, *hacks, *hacks])) < 0.02
    assert mixture_distance(honest, hacks, [2.0, 2.1]) == pytest.approx(0.5, abs=0.02)
