"""Operations on policies: model endpoints, scripted policies and trained checkpoints."""

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.domain.vocabulary import CheckStatus, Role
from backend.errors import NotFound
from backend.operations.declaration import operation, reference
from backend.policies import queries, service
from backend.policies.schemas import (
    PRESETS,
    ChooseModel,
    ConnectionTestResponse,
    CreatePolicy,
    EndpointPreset,
    ListPolicies,
    PolicyResponse,
    UpdatePolicy,
)
from backend.policies.tables import Policy
from backend.projects.queries import project_id_of
from backend.web.identity import Actor
from backend.web.paging import Page

reference(Policy, "Name or id of a policy.")(queries.get_policy)


@operation("GET /policies", role=Role.VIEWER, command="policy list", tool=True)
def list_policies(session: Session, actor: Actor, request: ListPolicies) -> Page[PolicyResponse]:
    """List policies by name."""
    project_id = project_id_of(session, request.project)
    found = queries.policies(
        session,
        after=request.after,
        limit=request.limit,
        project_id=project_id,
        with_archived=request.archived,
    )
    return Page(items=[PolicyResponse.of(policy) for policy in found.items], next=found.next)


@operation(
    "POST /policies",
    role=Role.TRAINER,
    in_project=True,
    command="policy add",
    notice="policy {name} added",
    status=201,
    tool=True,
    audited=False,
)
def create_policy(session: Session, actor: Actor, request: CreatePolicy) -> PolicyResponse:
    """Add a model endpoint (`base_url` or `preset`, and `model`) or a scripted policy (`script`)."""
    return PolicyResponse.of(service.create_policy(session, actor, request))


@operation("GET /policies/presets", role=Role.VIEWER)
def list_presets(session: Session, actor: Actor) -> list[EndpointPreset]:
    """List known kinds of endpoints with their usual base URLs."""
    return list(PRESETS)


@operation("GET /policies/{policy}", role=Role.VIEWER, command="policy show")
def get_policy(session: Session, actor: Actor, policy: Policy) -> PolicyResponse:
    """Show a policy and its configuration. Its key is never shown."""
    return PolicyResponse.of(policy)


@operation(
    "PATCH /policies/{policy}", role=Role.TRAINER, command="policy edit", notice="policy {name} updated", audited=False
)
def update_policy(session: Session, actor: Actor, policy: Policy, request: UpdatePolicy) -> PolicyResponse:
    """Change a policy. Settings that are not given stay. A new base URL removes the key, unless a key is given."""
    return PolicyResponse.of(service.update_policy(session, actor, policy, request))


@operation(
    "POST /policies/{policy}/archive",
    role=Role.AUTHOR,
    command="policy archive",
    page="/policies/{id}",
    notice="{name} is archived. Its runs are kept.",
)
def archive_policy(session: Session, actor: Actor, policy: Policy) -> PolicyResponse:
    """Archive a policy. It disappears from lists and choices; its runs are kept, and its name still refers to it."""
    policy.archived_at = policy.archived_at or datetime.now(UTC)
    session.flush()
    return PolicyResponse.of(policy)


@operation(
    "POST /policies/{policy}/restore",
    role=Role.AUTHOR,
    command="policy restore",
    page="/policies/{id}",
    notice="{name} is no longer archived.",
)
def restore_policy(session: Session, actor: Actor, policy: Policy) -> PolicyResponse:
    """Take a policy out of the archive."""
    policy.archived_at = None
    session.flush()
    return PolicyResponse.of(policy)


@operation(
    "DELETE /policies/{policy}",
    role=Role.TRAINER,
    command="policy delete",
    page="/policies",
    notice="The policy was deleted. Its runs stay. You can restore it from Recently deleted for 30 days.",
    audited=False,
)
def delete_policy(session: Session, actor: Actor, policy: Policy) -> None:
    """Delete a policy. Its runs stay, its key is erased, and its name becomes free. It can be restored for 30 days."""
    service.delete_policy(session, actor, policy)


@operation(
    "POST /policies/{policy}/test",
    role=Role.TRAINER,
    command="policy test",
    status=202,
    poll="/policies/{policy}/test",
    page="/policies/{policy}",
    audited=False,
)
def test_connection(session: Session, actor: Actor, policy: Policy) -> ConnectionTestResponse:
    """Check that the endpoint is reachable, accepts the key and serves the model, with a few tiny requests."""
    service.start_connection_test(session, actor, policy)
    return get_connection_test(session, actor, policy)


@operation("GET /policies/{policy}/test", role=Role.VIEWER)
def get_connection_test(session: Session, actor: Actor, policy: Policy) -> ConnectionTestResponse:
    """Show the latest connection test, with the models that the endpoint lists."""
    test = service.latest_connection_test(session, policy)
    if test is None:
        raise NotFound(f"The connection of {policy.name} was not tested yet.")
    report = test.report
    failed = [each.sentence for each in report.findings if each.status is CheckStatus.FAILED] if report else []
    return ConnectionTestResponse(
        id=test.id,
        requested_at=test.requested_at,
        is_finished=report is not None,
        is_successful=report is not None and report.status is not CheckStatus.FAILED,
        message=" ".join(failed) if report else "Testing the connection",
        is_stale=test.is_stale,
        status=report.status if report else None,
        findings=report.findings if report else [],
        models=report.models if report else [],
        seconds=report.seconds if report else None,
    )


@operation("POST /policies/{policy}/model", role=Role.TRAINER, audited=False)
def choose_model(session: Session, actor: Actor, policy: Policy, request: ChooseModel) -> PolicyResponse:
    """Use another model of the same endpoint."""
    return PolicyResponse.of(service.choose_model(session, actor, policy, request.model))
