"""Which recipe is proposed for what a pre-flight measured: the table of rules, and that a proposal can be applied."""

from dataclasses import replace
from typing import Any

import pytest

from backend.domain.training.advice import StartingPoint, StoredExamples, advise, starting_point
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.preflight.findings import of_environment, ok
from backend.domain.training.preflight.measured import TaskSuccess, success_finding
from backend.training.schemas import resolve_configuration
from backend.training.setting_texts import nest

BASE = TrainingConfiguration.model_validate({"model": {"source": "base", "base": "tiny"}, "recipe": "grpo"})
SCRATCH = TrainingConfiguration()
POINT = StartingPoint(success=0.3, attempts=256, parsed=0.9, gradient=0.7)
STORED = StoredExamples("018f0000-0000-7000-8000-000000000000", "Evaluation of the large one", 120, "win >= 1")
TAUGHT: dict[str, Any] = {"script": "gold", "script_success": 1.0}
CASES: list[tuple[str, dict[str, Any], str, dict[str, str]]] = [
    ("sometimes succeeds", {}, "GRPO", {}),
    ("cannot write replies", {"success": 0.0, "parsed": 0.1, **TAUGHT}, "SFT, then GRPO", {"sft.script": "gold"}),
    (
        "never succeeds, a stronger model does",
        {"success": 0.0, "gradient": 0.0, "stored": STORED},
        "SFT, then GRPO",
        {"sft.source": "rollouts", "sft.runs": STORED.run_id, "sft.where": "win >= 1"},
    ),
    (
        "never succeeds, with too few examples",
        {"success": 0.0, "stored": replace(STORED, successes=3)},
        "GRPO on partial rewards",
        {},
    ),
    ("never succeeds, all the same", {"success": 0.0, "gradient": 0.05}, "Examples first", {}),
    (
        "succeeds on easy levels only",
        {"success": 0.015, "gradient": 0.1, "levels": {0: 0.3, 1: 0.15, 2: 0.0, 3: 0.0}, **TAUGHT},
        "An easier level first, with GRPO",
        {"curriculum.kind": "adaptive", "curriculum.start": "1"},
    ),
    (
        "a poor scripted policy is not copied",
        {"success": 0.0, "gradient": 0.0, "script": "random", "script_success": 0.2},
        "Examples first",
        {},
    ),
    ("rarely succeeds, can be shown how", {"success": 0.05, **TAUGHT}, "SFT, then GRPO", {"recipe": "sft_then_grpo"}),
    ("rarely succeeds, alone", {"success": 0.05}, "GRPO", {}),
    (
        "few groups differ, on some levels",
        {"success": 0.4, "gradient": 0.2, "levels": {0: 1.0, 1: 0.5, 2: 0.0}},
        "GRPO on the levels that teach",
        {"grpo.levels": "0,1,0"},
    ),
    ("few groups differ", {"gradient": 0.2}, "GRPO with dynamic sampling", {"grpo.replace_uniform": "2"}),
    ("hardly any group differs, can be shown how", {"gradient": 0.05, **TAUGHT}, "SFT", {"recipe": "sft"}),
    ("mastered", {"success": 0.99, "gradient": 0.02}, "A harder environment", {}),
    (
        "mastered but for one level",
        {"success": 0.96, "levels": {0: 1.0, 1: 1.0, 2: 0.7}},
        "GRPO on harder levels",
        {"grpo.levels": "0,0,1"},
    ),
]


@pytest.mark.parametrize(
    ("measured", "title", "changes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_proposal_follows_from_what_was_measured_and_can_be_applied(
    measured: dict[str, Any], title: str, changes: dict[str, str]
) -> None:
    point = replace(POINT, **measured)
    advice = advise(point, BASE, {*Recipe} - {Recipe.REJECTION_SAMPLING})
    assert advice.title == title
    assert changes.items() <= advice.changes.items()
    assert advice.reasons
    assert advice.measured[0].startswith(f"{point.success:.0%} of 256 episodes succeed before training")
    applied = resolve_configuration(None, nest(advice.changes), BASE.resolved())
    assert not applied.problems(scripts=["gold", "teacher"], levels=4)
    again = advise(point, applied, {*Recipe} - {Recipe.REJECTION_SAMPLING})
    assert (again.title, again.changes) == (title, {})
    assert again.is_followed == (title not in {"Examples first", "A harder environment"})


def test_only_recipes_that_exist_are_proposed() -> None:
    rare = replace(POINT, success=0.15, gradient=0.2)
    assert advise(rare, BASE, {Recipe.GRPO, Recipe.REJECTION_SAMPLING}).changes == {"recipe": "rejection_sampling"}
    assert "grpo.replace_uniform" in advise(rare, BASE, {Recipe.GRPO}).changes


def test_a_named_teacher_is_proposed_where_nothing_succeeds_and_nothing_can_be_copied() -> None:
    hopeless = replace(POINT, success=0.0, gradient=0.0)
    assert "use distillation" in advise(hopeless, BASE).reasons[-1]
    taught = resolve_configuration(None, {"distillation": {"teacher": "base", "base": "larger"}}, BASE.resolved())
    advice = advise(hopeless, taught)
    assert (advice.title, advice.changes) == ("Distillation", {"recipe": "distillation"})
    assert advise(hopeless, taught, {Recipe.GRPO}).title == "Examples first"


def test_a_model_from_scratch_has_to_copy_something() -> None:
    nothing = StartingPoint(0.0, 64, parsed=0.0, gradient=0.0)
    assert advise(nothing, SCRATCH).title == "Examples first"
    advice = advise(replace(nothing, **TAUGHT), SCRATCH)
    assert (advice.title, advice.changes) == ("SFT, then GRPO", {"sft.script": "gold"})


def test_it_reads_the_findings_of_a_preflight_and_averages_a_mix() -> None:
    tasks = [TaskSuccess(0, 4, 8, False), TaskSuccess(1, 0, 8, True)]
    found = success_finding(tasks, BASE, "win >= 1", parsed=0.75)
    script = ok("script", "It wins.", share=1.0, script="gold")
    point = starting_point([ok("model", ""), found, script])
    assert point == StartingPoint(0.25, 16, 0.75, 0.5, {0: 0.5, 1: 0.0}, "gold", 1.0)
    other = success_finding([TaskSuccess(0, 8, 8, True)], BASE, "win >= 1", parsed=0.25)
    mixed = starting_point([of_environment(found, "one"), of_environment(other, "two")])
    assert mixed == StartingPoint(0.625, 24, 0.5, 0.25)
    assert starting_point([ok("model", "")]) is None
