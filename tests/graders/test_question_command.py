"""`proctor question …` with a real web server and a worker for its jobs."""

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.rollouts.tables import Rollout
from tests.graders.asked import GAVE_UP, STAYED, make_asked_run, sober
from tests.graders.fake import FakeJudge, serving
from tests.graders.test_judge_command import answer_in, worker
from tests.ops.commands import Command, proctor, server

__all__ = ["proctor", "server", "worker"]
pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("worker")
def test_a_question_is_written_scanned_tried_asked_and_its_answers_flagged(proctor: Command) -> None:
    with transaction() as session:
        run = make_asked_run(session, [GAVE_UP, STAYED, None])
    with serving(FakeJudge(sober)) as fake:
        prices = ("--price-input", "1", "--price-output", "10")
        proctor("policy", "add", "fake", "--base-url", fake.url, "--model", "m", *prices)
        added = proctor("question", "add", "gave_up", "--policy", "fake", "--text", "Did the agent give up early?")
        assert added.status == 0, added.err
        assert "gave_up" in proctor("question", "list").out
        assert proctor("question", "show", "gave_up", "--json").json["settings"]["answers"] == "yes_no"
        look = proctor("question", "look", "gave_up", str(run.id), "--json").json
        assert look["count"] == 2
        assert look["cost"] > 0
        tried = proctor("question", "try", "gave_up", str(run.id), "--where", "task = 0", "--json")
        assert [each["answer"] for each in answer_in(tried)["rollouts"]] == ["yes"]
        asked = proctor("question", "ask", "gave_up", str(run.id), "--json")
        assert asked.status == 0, asked.err
        counts = {each["answer"]: each["count"] for each in answer_in(asked)["counts"]}
        assert counts == {"no": 1, "yes": 1}
        assert "2 of 2" in proctor("question", "results", str(run.id)).out
        assert (
            answer_in(proctor("question", "flag", "gave_up", str(run.id), "--answers", "yes", "--json"))["flags"] == 1
        )
        where = ("--where", "question.gave_up = yes")
        [only] = proctor("rollouts", "list", str(run.id), *where, "--json").json
        with transaction() as session:
            assert only["id"] == str(
                session.scalar(select(Rollout.id).where(Rollout.run_id == run.id, Rollout.seq == 1))
            )
        assert proctor("question", "stop", "gave_up", str(run.id)).status == 2
        assert proctor("question", "look", "nobody", str(run.id)).status == 2
        assert proctor("question", "delete", "gave_up").status == 0


def test_a_wrong_kind_is_reported(proctor: Command) -> None:
    proctor("policy", "add", "down", "--preset", "llama_cpp", "--model", "m")
    refused = proctor("question", "add", "x", "--policy", "down", "--kind", "riddle")
    assert refused.status == 2
    assert "contrast" in refused.err
    added = proctor("question", "add", "watch", "--policy", "down", "--kind", "monitor", "--json")
    assert added.json["settings"]["answers"] == "suspicion"
