"""From a hand-played episode onwards, in the browser: let a policy play, branch any rollout, keep what was played."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from backend.environments import continued_play, play, play_rows, queries
from backend.environments.requests import Branch, Demonstration, LetPlay, NewFixture
from backend.web.dependencies import Author, SessionDep
from backend.web.form_data import read_form
from backend.web.page import see_other

router = APIRouter()


@router.post("/environments/{name}/play/{run_id}/policy")
def let_play(
    session: SessionDep,
    actor: Author,
    name: str,
    run_id: uuid.UUID,
    form: Annotated[LetPlay, Depends(read_form(LetPlay))],
) -> Response:
    """A policy plays the next turns."""
    run = play_rows.get_play(session, name, run_id)
    continued_play.let_play(session, actor, run, form.policy, moves=form.moves, revision=form.revision)
    return see_other(f"/environments/{name}/play/{run_id}")


@router.post("/environments/{name}/play/{run_id}/over")
def take_over(session: SessionDep, actor: Author, name: str, run_id: uuid.UUID) -> Response:
    """Stop the policy that plays on."""
    play.take_over(session, actor, play_rows.get_play(session, name, run_id))
    return see_other(f"/environments/{name}/play/{run_id}")


@router.post("/environments/{name}/play/from")
def play_from(
    session: SessionDep, actor: Author, name: str, form: Annotated[Branch, Depends(read_form(Branch))]
) -> Response:
    """Play on by hand from a turn of any rollout of this environment."""
    environment = queries.get_environment(session, name)
    run = continued_play.play_from(session, actor, environment, form.rollout_id, turns=form.turns)
    return see_other(f"/environments/{name}/play/{run.id}")


@router.post("/environments/{name}/fixtures")
def save_fixture(
    session: SessionDep, actor: Author, name: str, form: Annotated[NewFixture, Depends(read_form(NewFixture))]
) -> Response:
    """Write an episode into the draft as a fixture."""
    environment = queries.get_environment(session, name)
    path = continued_play.save_fixture(
        session, actor, environment, form.rollout_id, name=form.name, note=form.note, kind=form.kind
    )
    return see_other(f"/environments/{name}/edit?file={path}", f"{path} is in the draft; publish to keep it.")


@router.post("/environments/{name}/demonstrations")
def mark_demonstration(
    session: SessionDep, actor: Author, name: str, form: Annotated[Demonstration, Depends(read_form(Demonstration))]
) -> Response:
    """May the SFT warm-up learn from this episode?"""
    environment = queries.get_environment(session, name)
    rollout = continued_play.mark_demonstration(session, actor, environment, form.rollout_id, is_wanted=form.is_wanted)
    said = "marked for the SFT warm-up" if form.is_wanted else "no longer marked for the SFT warm-up"
    return see_other(f"/rollouts/{rollout.id}", f"The episode is {said}.")
