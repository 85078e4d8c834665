"""Writing, changing and deleting questions; asking them about a run, the cost beforehand; the answers as a column."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.settings import GraderKind
from backend.domain.vocabulary import PolicyKind, RunStatus, Verdict
from backend.errors import InvalidInput
from backend.graders.selection import contrast_groups
from backend.graders.tables import Grade, Grader, GraderRun
from backend.rollouts.queries import list_rollouts, matching
from backend.rollouts.regrading.weights import list_reward_terms
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from backend.team.tables import AuditEvent
from tests.factories import make_flag, make_policy
from tests.graders.asked import GAVE_UP, STAYED, TEXT, cited, make_answer, make_asked_run, make_question

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def form(session: Session) -> dict[str, str]:
    configuration = {"base_url": "http://x/v1", "model": "m", "price": {"input": 1.0, "output": 10.0}}
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration=configuration)
    return {
        "name": "gave_up",
        "policy": str(policy.id),
        "kind": "question",
        "text": TEXT,
        "answers": "yes_no",
        "flags": "",
    }


def members(session: Session, run: Run) -> list[Rollout]:
    return list(session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)))


def test_a_question_is_written_and_shown(session: Session, author: TestClient, form: dict[str, str]) -> None:
    assert author.get("/graders/new?kind=question").status_code == 200
    answer = author.post("/graders", data=form)
    question = session.scalars(select(Grader)).one()
    assert answer.headers["location"] == f"/graders/{question.id}"
    page = author.get(f"/graders/{question.id}").text
    assert TEXT in page
    assert "question.gave_up" in page
    assert "gave_up" in author.get("/graders").text
    assert session.scalars(select(AuditEvent).where(AuditEvent.action == "grader.create")).one()


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": "Not a name"}, "name"),
        ({"text": ""}, "text"),
        ({"answers": "labels"}, "labels"),
        ({"flags": "perhaps"}, "flags"),
        ({"policy": "00000000-0000-0000-0000-000000000000"}, "policy"),
    ],
)
def test_bad_input_names_the_field(
    author: TestClient, form: dict[str, str], fields: dict[str, str], wrong: str
) -> None:
    answer = author.post("/graders", data=form | fields, headers={"Accept": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["fields"].keys() == {wrong}


def test_once_it_was_asked_it_stays_as_it_is(session: Session, author: TestClient, form: dict[str, str]) -> None:
    author.post("/graders", data=form)
    question = session.scalars(select(Grader)).one()
    changed = author.post(f"/graders/{question.id}/edit", data=form | {"labels": "a, b", "answers": "labels"})
    assert changed.status_code == 303
    assert question.settings["labels"] == ["a", "b"]
    run = make_asked_run(session, [GAVE_UP])
    assert author.post(f"/graders/{question.id}/runs/{run.id}").status_code == 303
    assert author.get(f"/graders/{question.id}/edit").status_code == 409
    assert 'value="gave_up_2"' in author.get(f"/graders/new?copy={question.id}").text


def test_who_may_what(session: Session, author: TestClient, reviewer: TestClient, form: dict[str, str]) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP])
    assert reviewer.get(f"/graders/{question.id}").status_code == 200
    assert reviewer.get(f"/runs/{run.id}/graders").status_code == 200
    assert reviewer.get(f"/api/v1/graders/{question.id}/runs/{run.id}/grades").status_code == 200
    assert reviewer.post("/graders", data=form).status_code == 403
    assert reviewer.post(f"/graders/{question.id}/runs/{run.id}").status_code == 403
    assert reviewer.post(f"/graders/{question.id}/runs/{run.id}/flags", data={"answers": "yes"}).status_code == 403
    assert author.post(f"/graders/{question.id}/runs/{run.id}").status_code == 303


def test_how_many_and_the_cost_are_reported_before_it_starts(session: Session, author: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP, STAYED, None])
    page = author.get(f"/runs/{run.id}/graders?grader={question.id}").text
    assert "<b>2</b> rollouts to grade" in page
    assert "Try on 3 rollouts" in page
    found = author.get(f"/api/v1/graders/{question.id}/runs/{run.id}/estimate").json()
    assert (found["count"], found["graded"]) == (2, 0)
    assert found["tokens_in"] > 8 * 100
    assert found["cost"] == pytest.approx((found["tokens_in"] + 10 * found["tokens_out"]) / 1e6, rel=1e-3)
    assert session.scalars(select(Job)).all() == []
    make_answer(session, question, members(session, run)[0], "yes", tokens_in=400, tokens_out=20)
    found = author.get(f"/api/v1/graders/{question.id}/runs/{run.id}/estimate").json()
    assert (found["count"], found["graded"], found["tokens_in"]) == (1, 1, 7 * 400)


@pytest.mark.parametrize("where", ["nonsense = 1", "level = 77"])
def test_a_filter_that_fits_nothing_is_refused(session: Session, author: TestClient, where: str) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP])
    answer = author.post(f"/api/v1/graders/{question.id}/runs/{run.id}", json={"where": where})
    assert answer.status_code == 422
    assert session.scalars(select(Job)).all() == []


def test_it_is_started_once_tried_and_stopped(session: Session, author: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP] * 5)
    for _ in range(2):
        author.post(f"/graders/{question.id}/runs/{run.id}")
    asking = session.scalars(select(GraderRun)).one()
    job = session.scalars(select(Job).where(Job.name == "graders.run")).one()
    assert job.arguments == {"grader_run_id": str(asking.id)}
    assert "waiting for a worker" in author.get(f"/runs/{run.id}/graders").text
    tried = author.post(f"/graders/{question.id}/tries", data={"run": str(run.id)})
    assert "Waiting for the grader" in author.get(tried.headers["location"]).text
    ids = [str(rollout.id) for rollout in members(session, run)]
    trying = session.scalars(select(Job).where(Job.name == "graders.try")).one()
    assert trying.arguments["rollout_ids"] == [ids[0], ids[2], ids[4]]
    author.post(f"/graders/{question.id}/runs/{run.id}/stop")
    assert asking.status is RunStatus.STOPPED
    assert author.post(f"/graders/{question.id}/runs/{run.id}/stop").status_code == 409


def test_answers_are_a_column_that_filters_and_sorts(session: Session, viewer: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP, STAYED, STAYED])
    first, second, _ = members(session, run)
    scale = make_question(session, name="how_much", answers="one_to_five")

    def numbers(where: str, sort: str = "seq") -> list[int]:
        found = list_rollouts(session, run, RolloutFilter(where=where, sort=sort), scope_of(session, run))
        return [item.rollout.seq for item in found.items]

    assert numbers("has question.gave_up", "question.gave_up") == []
    make_answer(session, question, first, "yes")
    make_answer(session, question, second, "no")
    make_answer(session, scale, second, "4")
    session.flush()
    assert numbers("question.gave_up = yes") == [first.seq]
    assert numbers("question.gave_up = no", "-question.gave_up") == [second.seq]
    assert numbers("has question.gave_up", "-question.gave_up") == [first.seq, second.seq]
    assert numbers("not has question.gave_up") == [3]
    assert numbers("question.how_much >= 2") == [second.seq]
    page = viewer.get(f"/runs/{run.id}/rollouts?columns=task,question.gave_up,question.how_much").text
    assert "gave up" in page
    listed = viewer.get(f"/api/v1/rollouts?run_id={run.id}&sort=seq").json()["items"]
    assert [each["questions"] for each in listed] == [{"gave_up": "yes"}, {"gave_up": "no", "how_much": "4"}, {}]


def test_a_new_answer_is_seen_in_a_kept_list(session: Session) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP, STAYED])
    first, second = members(session, run)
    wanted = RolloutFilter(where="question.gave_up = yes", sort="-reward")

    def found() -> list[int]:
        return [item.rollout.seq for item in list_rollouts(session, run, wanted, scope_of(session, run)).items]

    make_answer(session, question, first, "yes")
    assert found() == [first.seq]
    answer = make_answer(session, question, second, None)
    assert found() == [first.seq]
    answer.answer, answer.score, answer.status = "yes", 1.0, "completed"  # type: ignore[assignment]
    session.flush()
    assert set(found()) == {first.seq, second.seq}


def test_quotes_are_marked_in_place(session: Session, viewer: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP], ["It is hard, so I stop."])
    [rollout] = members(session, run)
    heard = {"turn": 0, "part": "heard", "start": 0, "end": 7, "quote": "17 + 25"}
    citations = [cited(rollout, "I give up"), cited(rollout, "so I stop", "thought"), heard]
    make_answer(session, question, rollout, "yes", citations=citations, dropped=1, reason=HOSTILE)
    page = viewer.get(f"/rollouts/{rollout.id}").text
    for quote in ("I give up", "so I stop", "17 + 25"):
        assert f"<mark>{quote}</mark>" in page
    assert HOSTILE not in page
    assert "Quotes not found in this rollout: 1" in page
    [found] = viewer.get(f"/api/v1/rollouts/{rollout.id}/grades").json()["items"]
    assert (found["answer"], len(found["citations"])) == ("yes", 3)


def test_an_answer_without_a_quote_is_marked(session: Session, viewer: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP])
    make_answer(session, question, members(session, run)[0], "yes")
    assert "no quote" in viewer.get(f"/rollouts/{members(session, run)[0].id}").text


def test_the_tab_counts_answers_with_verdicts(session: Session, author: TestClient, reviewer: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP, GAVE_UP, STAYED, STAYED])
    author.post(f"/graders/{question.id}/runs/{run.id}")
    verdicts = [Verdict.HACK, Verdict.HACK, Verdict.HONEST, Verdict.HONEST]
    for rollout, answer, verdict in zip(members(session, run), ("yes", "yes", "no", "no"), verdicts, strict=True):
        make_answer(session, question, rollout, answer, citations=[], cost=0.5)
        reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": str(verdict)})
    page = reviewer.get(f"/runs/{run.id}/graders").text
    assert f"/runs/{run.id}/rollouts?where=question.gave_up%20%3D%20yes" in page
    assert "1.00" in page
    [found] = reviewer.get(f"/api/v1/runs/{run.id}/graders").json()["items"]
    assert {each["answer"]: each["verdicts"] for each in found["counts"]} == {"no": {"honest": 2}, "yes": {"hack": 2}}
    assert (found["high_is_honest"], found["agreement"]["kappa"]) == (False, 1.0)
    assert (found["uncited"], found["cost"]) == (4, 2.0)


def test_stored_answers_are_turned_into_flags(session: Session, author: TestClient) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP, GAVE_UP, STAYED])
    first, second, third = members(session, run)
    make_answer(session, question, first, "yes", citations=[cited(first, "I give up")])
    make_answer(session, question, second, "yes")
    make_answer(session, question, third, "no", citations=[cited(third, "42")])
    path = f"/api/v1/graders/{question.id}/runs/{run.id}/flags"
    assert author.post(path, json={"answers": []}).status_code == 422
    assert author.post(path, json={"answers": ["yes"]}).json() == {"flags": 1}
    assert author.post(path, json={"answers": ["yes"]}).json() == {"flags": 0}
    author.post(f"/graders/{question.id}/runs/{run.id}")
    session.scalars(select(GraderRun)).one().canaries = CanaryReport(is_injectable=True).model_dump(mode="json")
    assert author.post(path, json={"answers": ["no"]}).status_code == 409
    [flag] = session.scalars(select(Flag).where(Flag.run_id == run.id))
    assert (flag.detector, flag.rollout_id) == ("question:gave_up", first.id)
    assert "<mark>I give up</mark>" in author.get(f"/review/{flag.id}?evidence=true").text
    assert "question:gave_up" in [each.detector for each in session.scalars(select(Flag))]


def test_a_deleted_question_leaves_its_name_and_its_answers(
    session: Session, author: TestClient, form: dict[str, str]
) -> None:
    question, run = make_question(session), make_asked_run(session, [GAVE_UP])
    make_answer(session, question, members(session, run)[0], "yes")
    assert author.delete(f"/api/v1/graders/{question.id}").status_code == 200
    assert author.get("/api/v1/graders").json()["items"] == []
    assert "question.gave_up" not in scope_of(session, run).fields
    assert "<b>yes</b>" in author.get(f"/rollouts/{members(session, run)[0].id}").text
    assert author.post("/graders", data=form).status_code == 303


def monitor(session: Session) -> Grader:
    return make_question(session, name="watch", kind=GraderKind.MONITOR)


def test_the_monitor_states_that_it_is_never_a_reward(session: Session, author: TestClient) -> None:
    assert "Never a reward" in author.get("/graders/new?kind=monitor").text
    assert "arXiv:2503.11926" in author.get(f"/graders/{monitor(session).id}").text


def test_a_run_without_reasoning_is_reported(session: Session, author: TestClient) -> None:
    question, run = monitor(session), make_asked_run(session, [GAVE_UP])
    assert "has reasoning text" in author.get(f"/runs/{run.id}/graders?grader={question.id}").text
    answer = author.post(f"/api/v1/graders/{question.id}/runs/{run.id}", json={})
    assert answer.status_code == 422
    assert "has reasoning text" in answer.json()["fields"]["where"]


def test_the_monitor_cannot_become_a_part_of_the_reward(session: Session, author: TestClient) -> None:
    question, run = monitor(session), make_asked_run(session, [GAVE_UP], ["I shall read the tests."])
    [rollout] = members(session, run)
    make_answer_of_monitor(session, question, rollout)
    names = {term.name for term in list_reward_terms(session, run)}
    assert not any("watch" in name for name in names)
    assert not any("watch" in name for name in scope_of(session, run).fields)
    for weights in ({"question.watch": 1.0}, {"judge.watch": 1.0}, {"watch": 1.0}):
        refused = author.post("/api/v1/rescores", json={"run_ids": [str(run.id)], "weights": weights})
        assert (refused.status_code, list(refused.json()["fields"])) == (422, ["weights"])
    assert GraderKind.MONITOR.detector("") not in SPECS  # what has no settings cannot be set to screen
    with pytest.raises(InvalidInput):
        list_rollouts(session, run, RolloutFilter(sort="question.watch"), scope_of(session, run))


def test_training_examples_are_not_chosen_by_what_read_the_reasoning(session: Session, author: TestClient) -> None:
    run = make_asked_run(session, [GAVE_UP, STAYED], ["a", "b"])
    first, second = members(session, run)
    make_flag(session, run, first, detector="reasoning_monitor")
    make_flag(session, run, second, detector="gibberish")
    reader = make_question(session, name="meant", shows_reasoning=True)
    make_answer(session, reader, first, "yes")

    def chosen(where: str, *, for_learning: bool) -> list[object]:
        return list(session.scalars(matching(session, run, where, for_learning=for_learning)))

    assert set(chosen("has flag", for_learning=False)) == {first.id, second.id}
    assert chosen("has flag", for_learning=True) == [second.id]
    assert chosen("not has flag", for_learning=True) == [first.id]
    assert chosen("question.meant = yes", for_learning=False) == [first.id]
    with pytest.raises(InvalidInput):
        chosen("question.meant = yes", for_learning=True)


def make_answer_of_monitor(session: Session, question: Grader, rollout: Rollout) -> None:
    session.add(
        Grade(
            grader_id=question.id,
            run_id=rollout.run_id,
            rollout_id=rollout.id,
            status="completed",
            answer="0.90",
            score=0.9,
            confidence=0.9,
            citations=[cited(rollout, "read the tests", "thought")],
        )
    )
    session.flush()


def test_a_contrast_shows_how_many_groups(session: Session, author: TestClient) -> None:
    question = make_question(session, name="apart", kind=GraderKind.CONTRAST)
    run = make_asked_run(session, [GAVE_UP, STAYED] * 2, rewards=[0.0, 1.0, 1.0, 1.0], group_size=2)
    found = author.get(f"/api/v1/graders/{question.id}/runs/{run.id}/estimate").json()
    assert (found["count"], found["problem"]) == (1, "")
    assert "<b>1</b> group to grade" in author.get(f"/runs/{run.id}/graders?grader={question.id}").text
    even = make_asked_run(session, [STAYED, STAYED], group_size=2)
    assert "different rewards" in author.get(f"/runs/{even.id}/graders?grader={question.id}").text
    assert author.post(f"/graders/{question.id}/runs/{even.id}").status_code == 422
    assert session.scalars(select(GraderRun)).all() == []


def test_a_cluster_is_shown_next_to_the_rest_of_its_groups(session: Session) -> None:
    run = make_asked_run(session, [STAYED] * 6, rewards=[1.0, 1.0, 0.0, 0.0, 1.0, 0.0], group_size=3)
    first, second, third, *_ = members(session, run)
    make_flag(session, run, second, detector="gibberish", cluster="mixed scripts")
    [context] = contrast_groups(session, run, 4, cluster="gibberish: mixed scripts")
    assert (context.high, set(context.low), context.label) == ((second.id,), {first.id, third.id}, "heldout/0")
    assert len(contrast_groups(session, run, 4)) == 2
    assert [len(each.high) for each in contrast_groups(session, run, 1)] == [1, 1]
    with pytest.raises(InvalidInput):
        contrast_groups(session, run, 4, cluster="gibberish")
