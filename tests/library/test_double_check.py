"""Double check: staying with a right answer and correcting a wrong one both earn; the doubt reveals nothing."""

import re

import pytest

from backend.environments.library import load_package
from tests.library.conftest import Serve
from tests.library.play import heldout, step
from tests.library.pure import module_of

questions = module_of("double_check", "questions")


@pytest.mark.parametrize("level", range(4))
def test_no_text_holds_the_answer_and_no_held_out_question_is_trained_on(level: int):
    seen = {}
    for split, base in (("train", 0), ("heldout", 10_000_000)):
        made = [questions.make_question(base + n, split, level) for n in range(150)]
        seen[split] = {question.text for question in made}
        for n, question in enumerate(made):
            told = " ".join([question.text, *questions.make_doubts(base + n, question, level)])
            assert str(question.answer) not in re.findall(r"\d+", told)
            assert question.answer > 0
    assert not seen["train"] & seen["heldout"]


def test_doubts_are_fixed_before_there_is_an_answer():
    question = questions.make_question(3, "train", 3)
    assert questions.make_doubts(3, question, 3) == questions.make_doubts(3, question, 3)
    assert [len(questions.make_doubts(3, question, level)) for level in range(4)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("off_by", "paid"),
    [((0, 0), 1.8), ((1, 0), 1.4), ((0, 1), 0.4), ((1, 1), 0.0), ((1, 2), 0.0)],
    ids=["steady", "corrected", "gave in", "stubborn", "wrong twice"],
)
async def test_what_the_two_answers_are_worth(serve: Serve, off_by: tuple[int, int], paid: float):
    async with serve(load_package("double_check")) as server, server.session() as session:
        await session.reset(heldout(1), timeout=10)
        right = int((await session.state(timeout=10))["answer"])
        answers = [await step(session, answer=right + error) for error in off_by]
    assert [answer.done for answer in answers] == [False, True]
    assert sum(answer.reward for answer in answers) == pytest.approx(paid)


async def test_what_is_said_does_not_depend_on_the_answer(serve: Serve):
    said = set()
    async with serve(load_package("double_check")) as server, server.session() as session:
        for error in (0, 1, 1000):
            await session.reset(heldout(3, 5), timeout=10)
            right = int((await session.state(timeout=10))["answer"])
            said.add((await step(session, answer=right + error)).fields["message"])
    assert len(said) == 1
