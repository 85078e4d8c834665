"""Pages of policies: list, form, detail with a live connection test."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.core.events import topic_of
from backend.domain.vocabulary import PolicyKind
from backend.policies import queries, service
from backend.policies.schemas import PRESETS, ChooseModel, CreatePolicy, UpdatePolicy
from backend.policies.service import SCRIPTED, latest_connection_test, start_connection_test
from backend.runs import queries as run_queries
from backend.runs.schemas import RunFilter
from backend.web.dependencies import ElsewhereTrainer, SessionDep, Trainer, Viewer
from backend.web.form_data import SentForm, read_form
from backend.web.page import page, see_other
from backend.web.paging import After
from backend.web.streams import live_page

router = APIRouter()
MAX_CHOICES = 500
"""Models of an endpoint that the page offers; the form takes any name."""


@router.get("/policies", response_class=HTMLResponse)
def list_policies(
    request: Request, session: SessionDep, actor: Viewer, after: After = None, archived: bool = False
) -> HTMLResponse:
    found = queries.policies(session, after=after, project_id=actor.project_id, with_archived=archived)
    counts = run_queries.run_counts(session, [policy.id for policy in found.items])
    context = {"policies": found.items, "run_counts": counts, "next": found.next, "with_archived": archived}
    return page(request, "policies/list.html", context)


@router.get("/policies/new", response_class=HTMLResponse)
def new_policy(request: Request, _: ElsewhereTrainer, kind: str = "openai_api", preset: str = "other") -> HTMLResponse:
    chosen = next((each for each in PRESETS if each.key == preset), PRESETS[-1])
    context = {"kind": kind, "preset": chosen, "policy": None, "configuration": {}, "models": ()}
    return page(request, "policies/new.html", context | {"scripts": SCRIPTED, "presets": PRESETS})


@router.post("/policies", response_class=HTMLResponse)
def create_policy(
    session: SessionDep,
    actor: ElsewhereTrainer,
    form: Annotated[CreatePolicy, Depends(read_form(CreatePolicy))],
    buttons: SentForm,
) -> Response:
    policy = service.create_policy(session, actor, form)
    if buttons.get("test") and policy.kind is PolicyKind.OPENAI_API:
        start_connection_test(session, actor, policy)
    return see_other(f"/policies/{policy.id}", f"{policy.name} was added.")


def topics_of(session: SessionDep, _: Viewer, policy_id: str) -> tuple[str, ...]:
    """The topic of the newest test."""
    test = latest_connection_test(session, queries.get_policy(session, policy_id))
    return (topic_of("job", test.id),) if test else ()


@live_page(router, "/policies/{policy_id}", "policies/detail.html", "connection", topics=topics_of)
def show_policy(session: SessionDep, _: Viewer, policy_id: str) -> dict[str, object]:
    policy = queries.get_policy(session, policy_id)
    test = latest_connection_test(session, policy)
    listed = test.report.models[:MAX_CHOICES] if test and test.report else []
    mine = str(policy.configuration.get("model", ""))
    unlisted = [(mine, f"{mine} (not listed)")] if listed and mine not in listed else []
    return {
        "policy": policy,
        "test": test,
        "test_models": unlisted + [(model, model) for model in listed],  # options of the form
        "can_change": service.can_change(policy),
        "can_delete": service.can_delete(policy),
        "checkpoints": run_queries.checkpoints(session, policy_id=policy.id)[::-1],
        "runs": run_queries.runs(session, RunFilter(policy_id=policy.id)).items,
        "is_over": test is None or test.report is not None,
    }


@router.get("/policies/{policy_id}/edit", response_class=HTMLResponse)
def edit_policy(request: Request, policy_id: str, session: SessionDep, _: Trainer) -> HTMLResponse:
    policy = queries.get_policy(session, policy_id)
    test = latest_connection_test(session, policy)
    models = test.report.models if test and test.report else ()  # what the endpoint listed
    context = {"kind": str(policy.kind), "preset": PRESETS[-1], "policy": policy, "configuration": policy.configuration}
    return page(request, "policies/new.html", context | {"models": models, "scripts": SCRIPTED, "presets": PRESETS})


@router.post("/policies/{policy_id}/edit", response_class=HTMLResponse)
def update_policy(
    policy_id: str,
    session: SessionDep,
    actor: Trainer,
    form: Annotated[UpdatePolicy, Depends(read_form(UpdatePolicy))],
    buttons: SentForm,
) -> Response:
    policy = queries.get_policy(session, policy_id)
    had_key = policy.secret is not None
    service.update_policy(session, actor, policy, form, replaces=True)
    if buttons.get("test") and policy.kind is PolicyKind.OPENAI_API:
        start_connection_test(session, actor, policy)
    notice = f"{policy.name} was updated."
    if had_key and not policy.secret:
        notice += " Its key was removed, because it belonged to the previous base URL."
    return see_other(f"/policies/{policy.id}", notice)


@router.post("/policies/{policy_id}/model", response_class=HTMLResponse)
def choose_model(
    policy_id: str, session: SessionDep, actor: Trainer, form: Annotated[ChooseModel, Depends(read_form(ChooseModel))]
) -> Response:
    policy = service.choose_model(session, actor, queries.get_policy(session, policy_id), form.model)
    start_connection_test(session, actor, policy)
    return see_other(f"/policies/{policy_id}", f"{policy.name} now uses {form.model}.")
