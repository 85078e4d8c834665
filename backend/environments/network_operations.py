"""The network of a version's servers, for scripts."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel

from backend.environments import queries
from backend.environments.network_grants import NetworkState, grant_network, network_state, withdraw_network
from backend.web.dependencies import Admin, SessionDep, Viewer

router = APIRouter(prefix="/api/v1", tags=["environments"])


class NetworkOut(BaseModel):
    """What the manifest asks for, and whether the servers get it."""

    hosts: list[str]
    is_open: bool
    is_granted: bool
    granted_by: str | None
    granted_at: datetime | None
    is_closed: bool
    words: str


@router.get("/environments/{name}/versions/{number}/network")
def get_network(name: str, number: int, session: SessionDep, _: Viewer) -> NetworkOut:
    version = queries.get_version(session, queries.get_environment(session, name), number)
    return _shown(network_state(session, version))


@router.put("/environments/{name}/versions/{number}/network")
def put_network(name: str, number: int, session: SessionDep, actor: Admin) -> NetworkOut:
    """Let the servers of exactly this content reach the network."""
    version = queries.get_version(session, queries.get_environment(session, name), number)
    return _shown(grant_network(session, actor, version, name))


@router.delete("/environments/{name}/versions/{number}/network")
def delete_network(name: str, number: int, session: SessionDep, actor: Admin) -> NetworkOut:
    """From the next lease on; what plays now goes on to its end."""
    version = queries.get_version(session, queries.get_environment(session, name), number)
    return _shown(withdraw_network(session, actor, version, name))


def _shown(state: NetworkState) -> NetworkOut:
    return NetworkOut.model_validate(state, from_attributes=True)
