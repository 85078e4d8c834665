"""A declared range holds for every step and every episode, also when the same action is repeated."""

from dataclasses import replace

import pytest

from backend.domain.detectors.run_view import SecondVerifier
from backend.domain.environments.reward_bounds import range_breaches
from backend.domain.vocabulary import CheckStatus
from backend.environments.library import load_package, render_template
from tests.detectors.query_desk import MANIFEST, PAID_ONCE, query_desk
from tests.detectors.rows import BATCH, flags, honest, row
from tests.environments.checks.test_checks_find_faults import look_at
from tests.library.conftest import Serve
from tests.library.test_certificates import SOUND, TEMPLATES
from tests.needed_checks import needed_for

RANGED = replace(BATCH, ranges={"": {"win": (0.0, 1.0)}})


@pytest.mark.slow
async def test_a_reward_that_pays_every_repetition_fails(serve: Serve) -> None:
    results = await look_at(serve, query_desk())
    failed = {name: result.evidence for name, result in results.items() if result.status is CheckStatus.FAILED}
    assert set(failed) == {"repeats_in_range", "repetition_pays_less"}, failed
    assert "Column query is 1.8 over the episode, outside its declared range 0 to 1." in failed["repeats_in_range"]
    assert results["repeats_in_range"].rollouts


@pytest.mark.slow
async def test_a_reward_that_pays_once_passes(serve: Serve) -> None:
    results = await look_at(serve, query_desk(PAID_ONCE))
    assert results["repeats_in_range"].status is CheckStatus.PASSED
    assert results["reward_in_range"].status is CheckStatus.PASSED


@pytest.mark.slow
async def test_a_repetition_that_is_harmless_alone_may_not_be_too_much_before_a_right_answer(serve: Serve) -> None:
    """The same column rewards queries and answers: four queries are inside the range, and so is an answer alone."""
    manifest = MANIFEST.replace("    query: {weight: 1.0, range: [0, 1]}\n", "    query: {weight: 0, range: [0, 9]}\n")
    files = query_desk("0.0", manifest)
    path = "server/query_environment.py"
    old = '"answer": 0.0}})'
    assert old in files[path]
    files[path] = files[path].replace(old, '"answer": 0.15 * is_query}})')
    results = await look_at(serve, files, checks=needed_for("gold_reaches_bound", "repeats_in_range"))
    assert results["repeats_in_range"].status is CheckStatus.FAILED
    assert "before the best episode" in results["repeats_in_range"].evidence


@pytest.mark.slow
async def test_a_step_outside_of_the_range_fails_though_the_episode_is_inside(serve: Serve) -> None:
    files = query_desk("(2.0 if self.queries == 1 else -1.5) * is_query")
    results = await look_at(serve, files, checks=needed_for("gold_reaches_bound", "reward_in_range"))
    assert results["reward_in_range"].status is CheckStatus.FAILED


@pytest.mark.slow
async def test_without_a_declared_range_there_is_nothing_to_hold_a_repetition_to(serve: Serve) -> None:
    files = query_desk(manifest=MANIFEST.replace(", range: [0, 1]", ""))
    results = await look_at(serve, files, checks=needed_for("repeats_in_range"))
    assert not results["repeats_in_range"].applies


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SOUND, "flight_desk", "handbook_search", "silver_words", "sloppy_guess"])
async def test_the_packages_of_the_library_stay_in_their_ranges(serve: Serve, name: str) -> None:
    results = await look_at(
        serve, load_package(name), checks=needed_for("gold_reaches_bound", "repeats_in_range", "reward_in_range")
    )
    told = {each: results[each].evidence for each in ("repeats_in_range", "reward_in_range")}
    assert all(results[each].status is not CheckStatus.FAILED for each in told), told


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
async def test_the_templates_stay_in_their_ranges(serve: Serve, template: str) -> None:
    files = render_template(template, "fresh")
    results = await look_at(serve, files, checks=needed_for("repeats_in_range", "reward_in_range"))
    failed = {each: result.evidence for each, result in results.items() if result.status is CheckStatus.FAILED}
    assert not failed


def test_a_value_over_the_episode_outside_of_its_range_is_flagged() -> None:
    paid = row(1.8, columns={"win": 1.8, "style": 0.0})
    [draft] = flags("out_of_range", [*honest(20), paid], context=RANGED)
    assert (draft.rollout_id, draft.score) == (paid.id, 1.0)
    assert draft.sentence == "Column win is 1.8 over the episode, outside its declared range 0 to 1."


def test_a_step_outside_of_its_range_is_flagged_and_marked() -> None:
    steps = ({"win": 0.0}, {"win": 1.5}, {"win": -0.5})
    paid = row(1.0, columns={"win": 1.0, "style": 0.0}, replies=("a", "bcd", "e"), step_rewards=steps)
    [draft] = flags("out_of_range", [paid], context=RANGED)
    assert "in step 2" in draft.sentence
    assert "1 more values" in draft.sentence
    assert draft.evidence["spans"] == [{"turn": 1, "start": 0, "end": 3}]


def test_values_inside_are_not_flagged_and_rounding_is_forgiven() -> None:
    inside = [row(1.0, columns={"win": 1.0000001, "style": 7.0}), row(0.0, columns={"win": -1e-8, "style": 0.0})]
    assert not flags("out_of_range", [*inside, *honest(20)], context=RANGED)
    assert not flags("out_of_range", [row(9.0, columns={"win": 9.0})], context=BATCH)


def test_a_step_may_be_worth_nothing_wherever_the_range_lies() -> None:
    ranges = {"win": (0.5, 1.0)}
    assert not list(range_breaches(ranges, {"win": 1.0}, [{"win": 0.0}, {"win": 1.0}]))
    assert [breach.step for breach in range_breaches(ranges, {"win": 0.4}, [{"win": -0.1}])] == [None, 0]


def test_each_environment_of_a_run_has_its_own_ranges() -> None:
    context = replace(BATCH, ranges={"a": {"win": (0.0, 1.0)}, "b": {"win": (0.0, 5.0)}})
    rows = [row(3.0, columns={"win": 3.0}, environment=name) for name in ("a", "b")]
    assert [draft.rollout_id for draft in flags("out_of_range", rows, context=context)] == [rows[0].id]


def test_what_another_version_scored_outside_of_its_range_is_flagged() -> None:
    rule = BATCH.success
    assert rule is not None
    context = replace(RANGED, second=SecondVerifier("tictactoe v2", rule, {"win": (0.0, 1.0)}))
    regraded = row(1.0, columns={"win": 1.0}, second_reward=4.0, second_columns={"win": 4.0})
    [draft] = flags("out_of_range", [regraded], context=context)
    assert draft.sentence.startswith("Scored by tictactoe v2: Column win is 4 over the episode")
