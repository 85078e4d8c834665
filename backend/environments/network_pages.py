"""The buttons with which an administrator grants a version's servers the network, or takes it away again."""

from fastapi import APIRouter
from fastapi.responses import Response

from backend.environments import queries
from backend.environments.network_grants import grant_network, withdraw_network
from backend.web.dependencies import Admin, SessionDep
from backend.web.page import see_other

router = APIRouter()


@router.post("/environments/{name}/versions/{number}/network")
def grant(session: SessionDep, actor: Admin, name: str, number: int) -> Response:
    version = queries.get_version(session, queries.get_environment(session, name), number)
    grant_network(session, actor, version, name)
    return see_other(f"/environments/{name}/versions/{number}", "Its servers get the network from now on.")


@router.post("/environments/{name}/versions/{number}/network/withdraw")
def withdraw(session: SessionDep, actor: Admin, name: str, number: int) -> Response:
    version = queries.get_version(session, queries.get_environment(session, name), number)
    withdraw_network(session, actor, version, name)
    return see_other(f"/environments/{name}/versions/{number}", "No new server of it gets the network.")
