"""Conclusions of a preflight from settings and measurements: pure functions."""

import uuid
from dataclasses import asdict, replace
from typing import Any

import pytest

from backend.domain.environments.manifest import Manifest
from backend.domain.runs.capabilities import Capabilities, OnlineWorker, not_offered
from backend.domain.training.configuration import TrainingConfiguration, batch_in_words
from backend.domain.training.memory import (
    EpisodeLengths,
    Load,
    ModelMeasures,
    estimate_memory,
    parameters_in_name,
)
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding, worst
from backend.domain.training.preflight.measured import (
    SCRIPTED,
    UNTRAINED,
    Range,
    Speed,
    TaskSuccess,
    conversation_finding,
    gradient_finding,
    no_gradient_share,
    stage_seconds,
    success_finding,
    time_finding,
)
from backend.domain.training.preflight.static import (
    Plan,
    Site,
    checks_at_once,
    estimate_run,
    loads_of,
    memory_finding,
)
from backend.domain.vocabulary import CheckStatus
from tests.factories import make_manifest

ENGINES = {"torch": "2.13.0", "trl": "1.16.0", "peft": "0.21.2"}
LAPTOP = OnlineWorker("gpu@laptop", ("gpu",), Capabilities(cpus=2, memory_mb=24_000, engines=ENGINES, cuda=False))


def configured(**choices: Any) -> TrainingConfiguration:
    return TrainingConfiguration.model_validate(choices)


def checked(
    manifest: Manifest | None = None, offers: tuple[OnlineWorker, ...] = (LAPTOP,), **choices: Any
) -> dict[str, Any]:
    limits = {"tasks": {"train": 9000, "heldout": 200, "levels": 4}, "episode": {"max_tokens_per_turn": 32}}
    manifest = manifest or make_manifest("game", **limits)
    plan = Plan(configured(**choices), [Site(manifest, CheckStatus.PASSED)], offers)
    return {finding.name: finding for finding in checks_at_once(plan)}


def of(successes: int, attempts: int = 8, level: int = 0) -> TaskSuccess:
    return TaskSuccess(level, successes, attempts, successes in {0, attempts})


def test_the_arithmetic_is_described():
    told = batch_in_words(configured(recipe="grpo", grpo={"micro_batches": 4}))
    assert told == ("20 tasks × 8 episodes = 160 rollouts per step; 100 steps = 16,000 rollouts; 4 micro-batches of 40")


def test_the_defaults_have_nothing_against_them():
    assert worst(checked().values()) is FindingStatus.OK


def test_no_one_having_checked_the_environment_is_a_warning():
    plan = Plan(configured(), [Site(make_manifest("game"), None)], [LAPTOP])
    assert {each.name: each.status for each in checks_at_once(plan)}["certificate"] is FindingStatus.WARNING


def test_more_tasks_than_there_are_is_a_warning_with_how_often_each_comes():
    found = checked(make_manifest("game", tasks={"train": 1000, "heldout": 200, "levels": 1}))["tasks"]
    assert (found.status, found.evidence) == (FindingStatus.WARNING, {"asked": 6000, "there": 1000})
    assert "6.0 times" in found.sentence


def test_of_a_mix_every_environment_is_requested_its_share():
    ladder = make_manifest("ladder", tasks={"train": 2000, "heldout": 30, "levels": 2})
    game = make_manifest("game", tasks={"train": 9000, "heldout": 200, "levels": 4})
    choices = configured(mix=["ladder@1=0.5"], heldout={"tasks": 150})
    sites = [Site(game, CheckStatus.PASSED), Site(ladder, CheckStatus.FAILED, 0.5)]
    found = {each.name: each for each in checks_at_once(Plan(choices, sites, [LAPTOP]))}
    assert found["certificate: game"].status is FindingStatus.OK
    assert found["certificate: ladder"].status is FindingStatus.PROBLEM
    assert found["tasks: game"].evidence["asked"] == 2 * found["tasks: ladder"].evidence["asked"] == 4000
    assert "100 tasks" in found["heldout: game"].sentence
    assert found["heldout: ladder"].status is FindingStatus.PROBLEM
    assert "90 or less" in found["heldout: ladder"].advice


def test_an_environment_of_the_mix_that_is_not_there_is_a_problem():
    plan = Plan(configured(), [Site(make_manifest("game"), None)], [LAPTOP], missing=["There is no ladder v9."])
    assert [each.sentence for each in checks_at_once(plan) if each.name == "mix"] == ["There is no ladder v9."]


def test_more_held_out_tasks_than_there_are_is_a_problem():
    assert checked(heldout={"tasks": 300})["heldout"].status is FindingStatus.PROBLEM


def test_without_a_worker_it_shows_how_to_start_one():
    found = checked(offers=())["worker"]
    assert found.status is FindingStatus.WARNING
    assert "proctor up" in found.advice


def test_a_choice_that_no_worker_can_carry_out_is_a_problem_by_its_name():
    found = checked(adapter={"kind": "qlora"}, model={"source": "base", "base": "some/model-0.5B"})["choice"]
    assert found.status is FindingStatus.PROBLEM
    assert "adapter.kind qlora needs a worker with peft and bitsandbytes" in found.sentence


def test_a_script_that_the_environment_does_not_offer_is_a_problem():
    assert checked(sft={"script": "master"})["environment"].status is FindingStatus.PROBLEM


def test_a_reply_that_may_fill_the_context_is_a_warning():
    assert checked(make_manifest("game", episode={"max_tokens_per_turn": 512}))["context"].status == "warning"


@pytest.mark.parametrize("source", ["base", "checkpoint"])
def test_the_context_of_a_model_that_is_not_made_here_counts_where_it_is_known(source: str):
    model = {"source": source, "base": "some/model", "checkpoint": uuid.uuid4()}
    manifest = make_manifest("game", episode={"max_tokens_per_turn": 512})
    plan = Plan(configured(recipe="grpo", model=model), [Site(manifest, CheckStatus.PASSED)], [LAPTOP])
    assert "context" not in {each.name for each in checks_at_once(plan)}
    found = {each.name: each for each in checks_at_once(replace(plan, context=512))}
    assert (found["context"].status, found["context"].evidence["context"]) == (FindingStatus.WARNING, 512)
    found = {each.name: each for each in checks_at_once(replace(plan, context=32_768))}
    assert found["context"].status is FindingStatus.OK


@pytest.mark.parametrize(
    ("kind", "sft", "grpo", "warned"),
    [
        ("full", 2e-3, 5e-4, {"sft_rate", "grpo_rate"}),
        ("lora", 2e-3, 5e-4, {"sft_rate", "grpo_rate"}),
        ("full", 2e-5, 1e-6, set()),
        ("lora", 2e-4, 1e-5, set()),
        ("lora", 2e-5, 1e-6, set()),
        ("full", 2e-5, 1e-4, {"grpo_rate"}),
    ],
)
def test_rates_far_above_what_is_usual_for_a_pretrained_model_are_a_warning(
    kind: str, sft: float, grpo: float, warned: set[str]
):
    """The first two are the defaults, which suit models from scratch."""
    choices = configured(
        model={"source": "base", "base": "some/model"},
        adapter={"kind": kind},
        sft={"learning_rate": sft},
        grpo={"learning_rate": grpo},
    )
    plan = Plan(choices, [Site(make_manifest("game"), CheckStatus.PASSED)], [LAPTOP], is_pretrained=True)
    found = {each.name: each for each in checks_at_once(plan) if each.name.endswith("_rate")}
    assert {name for name, each in found.items() if each.status is FindingStatus.WARNING} == warned
    assert all(each.advice for each in found.values() if each.status is FindingStatus.WARNING)
    assert not [each for each in checks_at_once(replace(plan, is_pretrained=False)) if each.name.endswith("_rate")]


def test_only_the_rate_of_a_stage_that_the_run_has_is_scanned():
    alone = configured(recipe="grpo", model={"source": "base", "base": "some/model"})
    plan = Plan(alone, [Site(make_manifest("game"), CheckStatus.PASSED)], [LAPTOP], is_pretrained=True)
    found = {each.name: each.sentence for each in checks_at_once(plan)}
    assert "sft_rate" not in found
    assert found["grpo_rate"] == (
        "grpo.learning_rate is 5e-4; 1e-6 to 1e-5 is usual for all weights of a pretrained model."
    )


def test_lora_is_offered_while_no_worker_answers_and_qlora_is_not():
    refused = {value for _, value in not_offered([])}
    assert {"qlora", "vllm", "unsloth"} <= refused
    assert "lora" not in refused


def test_a_worker_for_another_queue_offers_nothing_to_training():
    idle = OnlineWorker("cpu@laptop", ("cpu",), LAPTOP.can)
    assert ("adapter.kind", "lora") in not_offered([idle])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 500_000_000),
        ("SmolLM2-135M", 135_000_000),
        ("gpt2", None),
        ("/models/mine", None),
    ],
)
def test_a_name_shows_a_models_size(name: str, count: int | None):
    assert parameters_in_name(name) == count


def test_memory_is_the_sum_of_parts_that_can_be_checked_manually():
    model = ModelMeasures(1000, layers=2, width=10, key_value_width=10, vocabulary=100, token_bytes=1360)
    load = Load(1000, has_reference=True, rows=3, lengths=EpisodeLengths(5), sampled_rows=4)
    found = estimate_memory(model, load)
    assert (found.weights, found.reference, found.gradients, found.optimiser) == (4000, 4000, 4000, 8000)
    assert found.activations == 3 * 5 * 1360
    assert found.logits == 3 * 5 * 100 * 4
    assert found.cache == 4 * 5 * 2 * 2 * 10 * 4
    assert found.total == sum(asdict(found).values())
    ahead = estimate_memory(model, replace(load, samples_ahead=True))
    assert ahead.total - found.total == ahead.sampler == 4000
    recomputed = estimate_memory(model, replace(load, is_recomputed=True))
    assert recomputed.activations == 3 * 5 * (2 * 10 * 4 + 1360 / 2)


def test_memory_counts_the_prompt_of_a_group_once_and_logits_of_learned_tokens_in_tiles():
    model = ModelMeasures(10**6, 2, 10, 10, vocabulary=100_000, token_bytes=1000, rounded_bytes=7)
    lengths = EpisodeLengths(longest=60, prompt=50, scored=8)
    found = estimate_memory(model, Load(10, False, 32, lengths, 32, sharing=8, on_cpu=True, copied_bytes=2))
    assert found.activations == (4 * 50 + 32 * 10) * 1000 + 7
    assert found.logits == 8 * 32 * 8 * 32_768 * 4
    assert found.sampler == 2 * 10**6
    assert found.libraries > 10**8
    assert found.unreturned == pytest.approx(0.8 * (found.activations + found.logits))
    longer = replace(lengths, scored=2000)
    assert estimate_memory(model, Load(10, False, 32, longer, 32)).logits == 4096 * 32_768 * 4


@pytest.mark.parametrize(
    ("choices", "rows"),
    [
        ({"recipe": "grpo", "grpo": {"tasks_per_step": 8, "group_size": 8, "micro_batches": 8}}, [8]),
        ({"grpo": {"tasks_per_step": 8, "group_size": 8, "micro_batches": 8}, "sft": {"batch": 16}}, [8, 16]),
        ({"recipe": "sft", "sft": {"batch": 24}, "hardware": {"processes": 2}}, [12]),
        ({"recipe": "dpo", "preferences": {"batch": 8, "micro_batches": 2}}, [8]),
    ],
)
def test_the_stage_that_needs_the_most_decides_on_memory(choices: dict[str, Any], rows: list[int]):
    loads = loads_of(configured(**choices), EpisodeLengths(10), trained=10)
    assert [load.rows for load in loads] == rows
    model = ModelMeasures(1000, 2, 10, 10, 100, token_bytes=1360)
    assert estimate_run(model, loads).activations == max(rows) * 10 * 1360


def test_a_long_reply_of_grpo_costs_more_than_the_examples_that_were_imitated():
    choices = {"grpo": {"tasks_per_step": 8, "group_size": 8, "micro_batches": 2}, "sft": {"batch": 16}}
    short, long = EpisodeLengths(58, 50, 8), EpisodeLengths(114, 50, 8)
    loads = loads_of(configured(**choices), short, trained=10, sampled=long, shares_prompts=True, on_cpu=True)
    model = ModelMeasures(10**8, 30, 576, 192, 49_152, token_bytes=10**6)
    assert estimate_run(model, loads).activations == (4 * 50 + 32 * 64) * 10**6


def test_memory_beyond_the_workers_is_a_problem_with_advice():
    model = ModelMeasures(10**9, 24, 2048, 2048, 150_000, token_bytes=24 * 2048 * 20 * 4)
    estimate = estimate_memory(model, Load(10**9, True, 64, EpisodeLengths(2048), 64))
    found = memory_finding(estimate, 24_000)
    assert found.status is FindingStatus.PROBLEM
    assert "grpo.micro_batches" in found.advice
    roomy = memory_finding(estimate, 10_000_000, episodes="of 47 tokens")
    assert roomy.status is FindingStatus.OK
    assert roomy.sentence.startswith("With episodes of 47 tokens, the run needs about ")


def test_a_group_of_four_at_even_odds_gives_no_gradient_once_in_eight():
    assert no_gradient_share([of(4)], 4) == pytest.approx(2 * 0.5**4)
    assert no_gradient_share([of(0), of(8)], 4) == 1.0


def test_a_policy_that_never_succeeds_is_a_problem_for_reinforcement_alone():
    found = success_finding([of(0), of(0, level=1)], configured(recipe="grpo"), "win >= 1")
    assert found.status is FindingStatus.PROBLEM
    assert "SFT" in found.advice
    assert "easier level" in found.advice
    assert success_finding([of(0)], configured(), "win >= 1").status is FindingStatus.OK


def test_a_policy_that_always_succeeds_is_told_to_try_something_harder():
    found = success_finding([of(8), of(8, level=1)], configured(recipe="grpo"), "win >= 1")
    assert found.status is FindingStatus.WARNING
    assert "harder" in found.advice


def test_levels_are_distinguished():
    found = success_finding([of(8), of(2, level=1)], configured(recipe="grpo"), "win >= 1")
    assert found.evidence["levels"] == {"0": 1.0, "1": 0.25}
    assert "level 1 25%" in found.sentence


def test_many_groups_without_a_gradient_are_a_warning():
    assert gradient_finding([of(0), of(0), of(4)], configured(recipe="grpo")).status is FindingStatus.WARNING
    assert gradient_finding([of(4), of(3)], configured(recipe="grpo")).status is FindingStatus.OK


@pytest.mark.parametrize(("longest", "status"), [(100, "ok"), (220, "warning"), (300, "problem")])
def test_conversations_are_held_against_the_context(longest: int, status: str):
    for of in (SCRIPTED, UNTRAINED):
        found = conversation_finding([60, longest, 80], 256, of=of)
        assert found.status == status
        assert f"The longest of 3 {of} has {longest} tokens" in found.sentence


SPEED = Speed(Range(0.5, 1), Range(1, 1), scripted=0.1, sft_step=Range(2, 3), grpo_step=Range(4, 6))


def test_time_is_what_was_measured_times_what_will_be_done():
    choices = configured(
        sft={"episodes": 100, "steps": 10, "batch": 8},
        grpo={"steps": 5, "tasks_per_step": 2, "group_size": 4, "beta": 0},
        heldout={"every": 5, "tasks": 10},
    )
    assert stage_seconds(SPEED, choices) == {
        "scripted episodes": Range(10, 10),
        "SFT": Range(20, 30),
        "sampling": Range(20, 40),
        "GRPO updates": Range(20, 30),
        "held-out evaluations": Range(30, 30),
    }
    found = time_finding(replace(SPEED, assumed=("all goes well",)), choices)
    assert (found.evidence["seconds"], found.evidence["at_most"]) == (100, 140 * 1.5)
    assert found.sentence.startswith("The run takes 2 min to 4 min")
    assert found.sentence.endswith("Assumed: all goes well.")


def test_groups_that_may_be_played_again_make_the_most_longer():
    choices = configured(grpo={"steps": 5, "tasks_per_step": 2, "group_size": 4, "replace_uniform": 2})
    assert stage_seconds(SPEED, choices)["sampling"] == Range(20, 120)


def test_a_budget_that_ends_before_the_work_is_reported():
    choices = configured(budget={"minutes": 1})
    found: PreflightFinding = time_finding(SPEED, choices)
    assert found.status is FindingStatus.WARNING
    assert "1 minutes" in found.advice
    assert found.sentence.startswith("The run takes ")


def test_workers_that_store_their_checkpoints_elsewhere_do_not_count():
    here = replace(LAPTOP, name="gpu@here", can=LAPTOP.can.model_copy(update={"artifacts": "a"}))
    far = replace(LAPTOP, name="gpu@far", can=LAPTOP.can.model_copy(update={"artifacts": "b"}))

    def worker(*offers: OnlineWorker) -> PreflightFinding:
        plan = Plan(configured(), [Site(make_manifest("game"), CheckStatus.PASSED)], offers, store="a")
        return next(finding for finding in checks_at_once(plan) if finding.name == "worker")

    assert worker(far).status is FindingStatus.PROBLEM
    assert worker(far).sentence.startswith("No online worker can read the artifacts of this installation: gpu@far")
    assert worker(far, here).sentence == "1 worker can run it: gpu@here."
    assert worker(LAPTOP).status is FindingStatus.OK  # it has not reported
