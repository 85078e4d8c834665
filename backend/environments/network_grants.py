"""Network access of a version's servers: the hosts that its manifest requests, and an administrator's grant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.addresses import NetworkRule
from backend.domain.environments.manifest import Manifest, NetworkSpec
from backend.environments.tables import EnvironmentVersion, NetworkGrant
from backend.errors import Conflict
from backend.settings import get_settings
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor


@dataclass(frozen=True, slots=True)
class NetworkState:
    hosts: Sequence[str]
    """Hosts that the manifest requests; empty: none."""
    is_open: bool = False
    """Whether its servers can reach the hosts."""
    is_granted: bool = False
    """Whether an administrator granted it."""
    granted_by: str | None = None
    granted_at: datetime | None = None
    is_closed: bool = False
    """The operator disabled network access."""

    @property
    def words(self) -> str:
        if not self.hosts:
            return "none"
        if self.is_closed:
            return "requested, but disabled by the operator of this machine"
        return "granted" if self.is_open else "not granted"


def network_state(session: Session, version: EnvironmentVersion) -> NetworkState:
    network = Manifest.model_validate(version.manifest).proctor.resources.network
    if not isinstance(network, NetworkSpec):
        return NetworkState(())
    rule = NetworkRule.read(get_settings().allow_network)
    statement = select(NetworkGrant, Person.name).outerjoin(Person, Person.id == NetworkGrant.granted_by)
    found = session.execute(statement.where(NetworkGrant.content_hash == version.content_hash)).one_or_none()
    grant, granter = found or (None, None)
    return NetworkState(
        hosts=network.hosts,
        is_open=rule.allows(version.content_hash, is_granted=grant is not None),
        is_granted=grant is not None,
        granted_by=granter,
        granted_at=grant.created_at if grant else None,
        is_closed=rule.is_closed,
    )


def grant_network(session: Session, actor: Actor, version: EnvironmentVersion, environment: str) -> NetworkState:
    """Let the servers of exactly this content reach the network. Idempotent."""
    state = network_state(session, version)
    if not state.hosts:
        raise Conflict("This version requests no network access. There is nothing to grant.")
    if state.is_closed:
        raise Conflict(
            "The operator of this machine disabled network access for all environments (PROCTOR_ALLOW_NETWORK=none)."
        )
    if not state.is_granted:
        session.add(NetworkGrant(content_hash=version.content_hash, granted_by=actor.person_id))
        session.flush()
        _audit(session, actor, "environment.grant_network", version, environment)
    return network_state(session, version)


def withdraw_network(session: Session, actor: Actor, version: EnvironmentVersion, environment: str) -> NetworkState:
    """Withdraw the grant. Running episodes finish; new servers start without it."""
    grant = session.get(NetworkGrant, version.content_hash)
    if grant is not None:
        session.delete(grant)
        session.flush()
        _audit(session, actor, "environment.withdraw_network", version, environment)
    return network_state(session, version)


def _audit(session: Session, actor: Actor, action: str, version: EnvironmentVersion, environment: str) -> None:
    hosts = version.manifest["proctor"]["resources"]["network"]["hosts"]
    audit(session, actor, action, "version", version.id, environment=environment, version=version.number, hosts=hosts)
