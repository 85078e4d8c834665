"""Network access of a version's servers."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.addresses import NetworkRule
from backend.domain.environments.manifest import NetworkSpec
from backend.environments.schemas import NetworkResponse
from backend.environments.tables import EnvironmentVersion, NetworkGrant
from backend.settings import get_settings
from backend.team.tables import Person


def network_of(session: Session, version: EnvironmentVersion) -> NetworkResponse:
    """Return the hosts that a version requests, and an administrator's grant."""
    network = version.typed_manifest.proctor.resources.network
    hosts = network.hosts if isinstance(network, NetworkSpec) else []
    rule = NetworkRule.read(get_settings().allow_network)
    statement = select(NetworkGrant, Person.name).outerjoin(Person, Person.id == NetworkGrant.granted_by)
    found = session.execute(statement.where(NetworkGrant.content_hash == version.content_hash)).one_or_none()
    grant, granter = found if found and hosts else (None, None)
    is_open = bool(hosts) and rule.allows(version.content_hash, is_granted=grant is not None)
    is_closed, words = bool(hosts) and rule.is_closed, "granted" if is_open else "not granted"
    if not hosts:
        words = "none"
    elif is_closed:
        words = "requested, but disabled by the operator of this machine"
    return NetworkResponse(
        hosts=hosts,
        is_open=is_open,
        is_granted=grant is not None,
        granted_by=granter,
        granted_at=grant.created_at if grant else None,
        is_closed=is_closed,
        words=words,
    )
