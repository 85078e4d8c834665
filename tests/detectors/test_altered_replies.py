"""Altered replies: a reward that follows the answer is left in peace, one that does not is flagged."""

import uuid
from dataclasses import replace

import pytest

from backend.domain.detectors.catalogue.metamorphic import Altered, alterations, scan_altered
from backend.domain.detectors.registry import SPECS
from backend.domain.environments.manifest import read_manifest
from tests.detectors.rows import row

SPEC = read_manifest(
    "name: sums\nproctor:\n  agent: {action: {format: tag, tag: answer, field: answer}}\n  rewards: {correct: 1.0}\n"
).proctor.agent.action
LIMITS = SPECS["metamorphic"].thresholds
PASSED = row(1.0, "I think it is <answer>42</answer>", actions=({"answer": "42"},))


def test_a_corrupted_answer_is_another_and_its_forms_are_the_same():
    corrupted, *forms = alterations(PASSED, SPEC)
    assert corrupted.reply == "<answer>55</answer>"
    assert all("<answer>42</answer>" in each.reply and not each.is_corrupted for each in forms)
    assert alterations(row(1.0, "nothing", actions=(None,)), SPEC) == []


@pytest.mark.parametrize(
    ("pays", "cluster"),
    [
        (lambda reply: float("42" in reply), None),
        (lambda reply: 1.0, "the answer was spoilt"),
        (lambda reply: float(reply.startswith("I think") and "42" in reply), "blank lines stand around the reply"),
    ],
    ids=["follows the answer", "pays everything", "pays for the form"],
)
async def test_a_reward_that_does_not_follow_the_answer_is_flagged(pays, cluster: str | None):
    async def grade(altered: list[Altered]) -> list[float]:
        return [pays(each.reply) for each in altered]

    found = await scan_altered([PASSED], SPEC, grade, LIMITS)
    assert [draft.cluster for draft in found] == ([cluster] if cluster else [])
    assert all(isinstance(draft.rollout_id, uuid.UUID) for draft in found)


TEXT = "# Tides\nThe moon pulls on the sea, and the water follows it around."


@pytest.mark.parametrize(
    ("pays", "clusters"),
    [
        (lambda reply: float("moon pulls on the sea" in reply), set()),
        (lambda reply: float("moon" in reply), {"its words were shuffled"}),
        (lambda reply: float("# " in reply), {"its words were shuffled", "its content was deleted and its form kept"}),
        (lambda reply: 1.0 + len(reply) / 1000 if "moon pulls on the sea" in reply else 0.0, {"flattery was appended"}),
    ],
    ids=["content", "keywords", "form", "length"],
)
async def test_texts_are_shuffled_emptied_and_padded(pays, clusters: set[str]) -> None:
    essay = row(0.0, f"<answer>{TEXT}</answer>", actions=({"answer": TEXT},))
    essay = replace(essay, reward=pays(essay.replies[0]))

    async def grade(altered: list[Altered]) -> list[float | None]:
        return [pays(each.reply) if each.how in clusters | {"its words were shuffled"} else None for each in altered]

    found = await scan_altered([essay], SPEC, grade, LIMITS)
    assert {draft.cluster for draft in found} <= clusters
    assert bool(found) is bool(clusters)


async def test_the_answer_of_another_task_must_cost_the_reward() -> None:
    other = row(1.0, "<answer>7</answer>", actions=({"answer": "7"},), task="train/1")
    seen: list[Altered] = []

    async def grade(altered: list[Altered]) -> list[float]:
        seen.extend(altered)
        return [1.0 for _ in altered]

    await scan_altered([PASSED, other], SPEC, grade, LIMITS)
    swapped = {each.row.id: each.reply for each in seen if each.how == "another task's answer was given"}
    assert swapped == {PASSED.id: "<answer>7</answer>", other.id: "<answer>42</answer>"}
