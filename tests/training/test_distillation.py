"""Distillation: what a token earns, which teachers are refused, and that the student approaches its teacher."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.distillation import reverse_kl, teacher_advantages
from backend.domain.training.grpo import GrpoChoice
from tests.policies.endpoint import KEY, error, raw, serving
from tests.training.game import CHOICE, Game, batch_run, make_tiny, some_examples, warmed_up
from workers.models.build import build_tokenizer
from workers.policies.openai_api import Endpoint
from workers.training.examples import TrainingExample
from workers.training.grpo_batch import GrpoRun, GrpoStep, play_batch, rows_of
from workers.training.teacher import (
    TEACHER_KL,
    EndpointTeacher,
    LocalTeacher,
    TeacherUnusable,
    read_scores,
    score_rollouts,
)
from workers.training.trl_grpo import train_grpo


def test_a_token_earns_what_the_teacher_finds_it_more_likely() -> None:
    own, teacher, mask = [-1.0, 0.0, -0.5, -0.1], [-0.5, -7.0, -2.0, -90.0], [1, 0, 1, 1]
    assert teacher_advantages(own, teacher, mask, 5) == [0.5, 0.0, -1.5, -5]
    assert reverse_kl(own, teacher, mask) == pytest.approx((-0.5 + 1.5 + 89.9) / 3)
    assert reverse_kl(own, teacher, [0] * 4) == 0


def test_settings_that_a_teacher_cannot_score_are_refused() -> None:
    recipe: dict[str, Any] = {"recipe": "distillation", "model": {"source": "base", "base": "a/b"}}

    def problems(**changes: Any) -> str:
        configuration = TrainingConfiguration.model_validate({**recipe, **changes})
        return " ".join(configuration.problems(scripts=[], levels=1))

    assert "Name the teacher (distillation.checkpoint)" in problems()
    named = {"teacher": "base", "base": "a/larger"}
    assert problems(distillation=named) == ""
    assert "temperature 1" in problems(distillation=named, grpo={"temperature": 0.7})
    assert "token-level ratios" in problems(distillation=named, grpo={"loss_type": "vespo"})


def test_a_local_teacher_scores_each_token_of_the_completion_whatever_the_padding() -> None:
    model, tokenizer = make_tiny()
    teacher, examples = LocalTeacher((model, tokenizer), tokenizer), some_examples(tokenizer, 3)
    for example, scores in zip(examples, teacher(examples), strict=True):
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([example.tokens])).logits[0].log_softmax(-1)
        first = len(example.prompt) - 1
        expected = [alone[first + place, token].item() for place, token in enumerate(example.completion)]
        assert scores == pytest.approx(expected, abs=1e-4)


def test_a_teacher_with_another_vocabulary_is_refused() -> None:
    model, tokenizer = make_tiny()
    other = build_tokenizer(["Quite another <text> with other words."] * 5, context=96)
    with pytest.raises(TeacherUnusable, match="another vocabulary"):
        LocalTeacher((model, other), tokenizer)


def answer(values: Any, tokens: Any) -> bytes:
    return json.dumps({"choices": [{"logprobs": {"token_logprobs": values, "tokens": tokens}}]}).encode()


def test_an_endpoints_answer_is_read_or_refused_with_the_reason() -> None:
    _, tokenizer = make_tiny()
    example = TrainingExample(tokenizer.encode("Say"), tokenizer.encode("<move>4</move>"), [])
    ids = example.tokens
    values, tokens = [None, *([-0.5] * len(ids))], [*(f"token_id:{id_}" for id_ in ids), "token_id:0"]
    scores = read_scores(answer(values, tokens), example, tokenizer)
    assert scores == [-0.5] * len(example.completion)
    assert read_scores(answer(values, [tokenizer.decode([id_]) for id_ in [*ids, 0]]), example, tokenizer) == scores
    for broken, message in {
        b'{"choices": [{"text": "hi"}]}': "gave no log-probabilities",
        b"<html>": "gave no log-probabilities",
        answer([-0.5], ["x"]): "does not echo the prompt",
        answer(values, ["token_id:7"] * len(values)): "another vocabulary",
        answer([None, *([0.5] * len(ids))], tokens): "no log-probabilities",
        answer([None, *(["a"] * len(ids))], tokens): "no log-probabilities",
    }.items():
        with pytest.raises(TeacherUnusable, match=message):
            read_scores(broken, example, tokenizer)


async def test_an_endpoint_is_asked_for_the_prompts_log_probabilities_and_again_while_it_is_busy() -> None:
    _, tokenizer = make_tiny()
    [example] = some_examples(tokenizer, 1)
    ids = example.tokens
    values = [None, *([-0.25] * len(ids))]
    good = raw(answer(values, [*(f"token_id:{id_}" for id_ in ids), "token_id:0"]))
    async with serving(error(503), good, error(404, "no such route")) as endpoint:
        teacher = EndpointTeacher(Endpoint(endpoint.url, "large", KEY, first_wait_seconds=0.01), tokenizer)
        assert await teacher.score([example]) == [[-0.25] * len(example.completion)]
        body = endpoint.bodies[0]
        assert (body["prompt"], body["echo"], body["logprobs"], body["model"]) == (ids, True, 1, "large")
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
        with pytest.raises(TeacherUnusable, match="404") as refusal:
            await teacher.score([example])
    assert "/completions with echo" in str(refusal.value)
    assert KEY not in str(refusal.value)


def test_rewards_do_not_matter_and_the_environments_tokens_earn_nothing() -> None:
    model, tokenizer = make_tiny()
    game = Game(model, tokenizer)
    choice = CHOICE.model_copy(update={"tasks_per_step": 2})
    run = batch_run(game.play, choice)
    run.tokenizer = tokenizer
    run.score = lambda rollouts: score_rollouts(
        lambda examples: [[-1.0] * len(each.completion) for each in examples],
        rollouts,
        end=tokenizer.eos_token_id,
        clip=50,
    )
    batch = play_batch(run, 1)
    rows = rows_of(run, batch)
    for rollout, advantages in zip(batch.rollouts, rows["token_advantages"], strict=True):
        own, mask = rollout.logprobs or [], rollout.completion_mask or []
        assert advantages == pytest.approx([(-1 - value) * counts for value, counts in zip(own, mask, strict=True)])
        assert TEACHER_KL in rollout.metrics


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_student_approaches_its_teacher(tmp_path: Path) -> None:
    teacher_model, tokenizer = warmed_up(tmp_path / "teacher", 30)
    student, _ = warmed_up(tmp_path / "student", 8)
    teacher, game = LocalTeacher((teacher_model, tokenizer), tokenizer), Game(student, tokenizer)
    gaps: list[float] = []
    replies: list[float] = []

    def take(step: GrpoStep) -> bool:
        gaps.append(step.figures[TEACHER_KL])
        written = [each.reply for rollout in step.rollouts for each in rollout.steps]
        replies.append(sum("4" in reply for reply in written) / len(written))
        return True

    choice = GrpoChoice(steps=20, tasks_per_step=4, group_size=4, learning_rate=2e-3, max_grad_norm=1.0, beta=0.0)
    end = int(tokenizer.eos_token_id)
    train_grpo(
        GrpoRun(
            model=student,
            tokenizer=tokenizer,
            choice=choice,
            columns=batch_run(game.play, choice).columns,
            seed=3,
            folder=tmp_path / "distillation",
            save_every=1000,
            play=game.play,
            on_step=take,
            policy=game.policy,
            score=lambda rollouts: score_rollouts(teacher, rollouts, end=end, clip=5),
        )
    )
    assert sum(gaps[-5:]) < 0.5 * sum(gaps[:5])
    assert sum(replies[-5:]) > sum(replies[:5])
