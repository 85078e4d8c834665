"""Training examples from a scripted policy on the real tic-tac-toe: which replies are learned."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase
from tests.models.conftest import some_texts
from tests.training.conftest import built_in
from tests.training.training_envs import make_venue
from workers.models.build import build_tokenizer
from workers.models.chat import ChatTokens
from workers.training.curriculum import single_plans
from workers.training.env_pool import EnvPool, open_env_pool
from workers.training.example_sources import MOST_SPOILED, Teacher
from workers.training.examples import example_of

pytestmark = pytest.mark.slow

FILES = built_in("tictactoe")
MANIFEST: Manifest = read_manifest(FILES["openenv.yaml"])


@pytest.fixture
def env_pool(installation: None) -> Iterator[EnvPool]:
    env = replace(make_venue(MANIFEST), content_hash=content_hash(FILES), files=FILES)
    with open_env_pool([env], TrainingConfiguration(servers=1, concurrency=64)) as env_pool:
        yield env_pool


def lessons(env_pool: EnvPool, noise: float, script: str = "teacher", count: int = 24) -> tuple[Any, list[Rollout]]:
    tokenizer = build_tokenizer([MANIFEST.proctor.agent.system, *some_texts()], context=256)
    played: list[Rollout] = []
    teacher = Teacher(script, ChatTokens(tokenizer), noise=noise)
    plans = single_plans([make_venue(MANIFEST)], count)
    env_pool.play(plans, teacher, phase=Phase.WARM_UP, seed=5, on_rollout=played.append)
    return tokenizer, sorted(played, key=lambda rollout: rollout.group)


def test_without_noise_every_reply_is_imitated(env_pool: EnvPool) -> None:
    tokenizer, played = lessons(env_pool, 0.0)
    for rollout in played:
        lesson = example_of(rollout, end=tokenizer.eos_token_id)
        learned = tokenizer.decode([token for token in lesson.labels if token != -100])
        replies = [message["content"] for message in rollout.messages if message["role"] == "assistant"]
        assert learned == "".join(f"{reply}<|end|>" for reply in replies)
        assert rollout.columns["format"] == 1.0
        assert rollout.columns["invalid_move"] == 0.0


def test_a_training_examples_tokens_are_the_templates(env_pool: EnvPool) -> None:
    tokenizer, played = lessons(env_pool, 0.5)
    for rollout in played:
        whole = tokenizer.apply_chat_template(rollout.messages, tokenize=True, return_dict=False)
        assert example_of(rollout, end=tokenizer.eos_token_id).tokens == whole


def test_spoiled_attempts_are_turned_down_and_not_imitated(env_pool: EnvPool) -> None:
    tokenizer, played = lessons(env_pool, 1.0)
    unread = illegal = 0
    for rollout in played:
        spoiled = [step for step in rollout.steps if step.action is None or step.text == "Invalid."]
        assert len(spoiled) == MOST_SPOILED
        lesson = example_of(rollout, end=tokenizer.eos_token_id)
        good = [step.reply for step in rollout.steps if step not in spoiled]
        learned = tokenizer.decode([token for token in lesson.labels if token != -100])
        assert learned == "".join(f"{reply}<|end|>" for reply in good)
        unread += sum(step.action is None for step in spoiled)
        illegal += sum(step.action is not None for step in spoiled)
    assert unread > 5
    assert illegal > 5


def test_the_same_seed_gives_the_same_training_examples(env_pool: EnvPool) -> None:
    (_, first), (_, again) = (lessons(env_pool, 0.3) for _ in range(2))
    assert [rollout.completion_token_ids for rollout in first] == [rollout.completion_token_ids for rollout in again]


def test_a_script_that_the_environment_lacks_fails_its_episodes(env_pool: EnvPool) -> None:
    _, played = lessons(env_pool, 0.0, script="teacher", count=2)
    assert all(rollout.is_completed for rollout in played)
    with pytest.raises(Exception, match=r"no reply under scripts\.wizard"):
        lessons(env_pool, 0.0, script="wizard", count=2)
