"""Stored conversations become training examples of the warm-up: the learned replies, exclusions, how sources mix."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from backend.core.session import transaction
from backend.domain.training.examples import Conversation
from backend.domain.vocabulary import Phase, RunStatus
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.training.example_sources import demonstrated_rollouts
from tests import factories
from tests.training.conftest import run_of
from tests.training.game import make_tiny
from workers.models.chat import ChatTokens
from workers.training.examples import TrainingExample, example_of_conversation, mix_examples

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]

MESSAGES = [
    {"role": "system", "content": "Play."},
    {"role": "user", "content": "Board?"},
    {"role": "assistant", "content": "nonsense"},
    {"role": "user", "content": "Invalid."},
    {"role": "assistant", "content": "<move>4</move>"},
]


@pytest.fixture(scope="module")
def chat() -> ChatTokens:
    return ChatTokens(make_tiny()[1])


def test_only_replies_that_were_understood_are_imitated(chat: ChatTokens) -> None:
    lesson = example_of_conversation(Conversation(MESSAGES, (False, True)), chat)
    assert lesson is not None
    learned = [token for token, counts in zip(lesson.completion, lesson.mask, strict=True) if counts]
    assert learned == chat.reply("<move>4</move>")
    assert lesson.completion[-1] == chat.end
    assert lesson.prompt == list(chat.opening(MESSAGES[:2]))


def test_reasoning_that_the_environment_separates_is_learned_before_the_answer(chat: ChatTokens) -> None:
    answer = {**MESSAGES[-1], "reasoning": "Only 4 is free."}
    lesson = example_of_conversation(Conversation([*MESSAGES[:2], answer], (True,)), chat)
    assert lesson is not None
    assert chat.text_of(lesson.completion) == "<think>\nOnly 4 is free.\n</think>\n\n<move>4</move>"
    assert all(lesson.mask)


def test_a_conversation_without_a_reply_that_was_understood_teaches_nothing(chat: ChatTokens) -> None:
    assert example_of_conversation(Conversation(MESSAGES[:3], (False,)), chat) is None
    assert example_of_conversation(Conversation(MESSAGES[:2], ()), chat) is None


def test_a_training_example_holds_the_tokens_that_the_policy_would_see(chat: ChatTokens) -> None:
    lesson = example_of_conversation(Conversation(MESSAGES, (True, True)), chat)
    assert lesson is not None
    rendered = chat.tokenizer.apply_chat_template(MESSAGES, tokenize=True, return_dict=False)
    assert lesson.tokens == rendered


def test_few_training_examples_are_repeated_up_to_their_share() -> None:
    main, shown, more = [[TrainingExample([n], [n], [1]) for n in numbers] for numbers in (range(10), [77], [88])]
    made = mix_examples(main, [(shown, 0.3)])
    assert (len(made), [lesson.prompt[0] for lesson in made[-3:]]) == (10, [77, 77, 77])
    both = [lesson.prompt[0] for lesson in mix_examples(main, [(shown, 0.2), (more, 0.5)])]
    assert both == [0, 1, 2, 77, 77, 88, 88, 88, 88, 88]
    assert mix_examples(main, []) == main


def test_only_marked_training_tasks_of_this_version_count(new_run: Callable[..., uuid.UUID]) -> None:
    with transaction() as session:
        run = session.get_one(Run, new_run())
        _mark(session, run, Phase.TRAIN, index=1, is_demonstration=True)
        _mark(session, run, Phase.TRAIN, index=2, is_demonstration=False)
        _mark(session, run, Phase.EVALUATION, index=3, is_demonstration=True)
        assert len(demonstrated_rollouts(session, [run.version_id])) == 1
        assert demonstrated_rollouts(session, [uuid.uuid4()]) == []


def test_a_warm_up_learns_from_them(new_run: Callable[..., uuid.UUID]) -> None:
    from workers.training.run import train

    run_id = new_run(recipe="sft", sft={"demonstrations": 0.5})
    with transaction() as session:
        _mark(session, session.get_one(Run, run_id), Phase.PLAY, index=1, is_demonstration=True)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert run_of(run_id).summary["lessons"]["demonstrations"]["lessons"] == 1
    assert not (get_settings().data / "training" / str(run_id) / "sft").exists()


def _mark(session: Any, run: Run, phase: Phase, *, index: int, is_demonstration: bool) -> None:
    other = factories.make_run(session, factories.make_environment_version(session), None)
    other.version_id, other.columns = run.version_id, run.columns
    group = factories.make_group(session, other, index=index, phase=phase)
    if phase is Phase.PLAY:  # the factory's other phases are held out
        group.task_id = factories.make_task(session, run.version_id, factories.Split.TRAIN, index).id
    factories.make_rollout(session, other, group, [1.0] * len(run.columns), is_demonstration=is_demonstration)
