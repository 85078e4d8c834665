"""The env host as jobs reach it: the settings' address and token, and the grants that administrators gave."""

from backend.core.session import transaction
from backend.environments.tables import NetworkGrant
from backend.settings import get_settings
from workers.environments.client import EnvHost


def open_env_host() -> EnvHost:
    """`async with open_env_host() as host`"""
    settings = get_settings()
    return EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value(), is_granted=has_network_grant)


def has_network_grant(content_hash: str) -> bool:
    """May servers of this content reach the network? Asked for each lease, so that a withdrawal holds at once."""
    with transaction() as session:
        return session.get(NetworkGrant, content_hash) is not None
