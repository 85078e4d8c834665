"""Connections to addresses that users choose: one policy and one client for every feature.

`policy` decides which addresses this installation connects to, `client` makes HTTP requests under that policy.
"""

from backend.core.outgoing.policy import (
    AddressRefused,
    CannotConnect,
    HostNotFound,
    OutgoingPolicy,
    Target,
    outgoing_policy,
    policy_of,
)

__all__ = [
    "AddressRefused",
    "CannotConnect",
    "HostNotFound",
    "OutgoingPolicy",
    "Target",
    "outgoing_policy",
    "policy_of",
]
