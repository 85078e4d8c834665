"""Policies that act in episodes: scripted ones and model endpoints. Local models live in `workers.models`."""

from collections.abc import Mapping
from typing import Any

from backend.domain.policies.prices import Limits
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import PolicyKind
from workers.policies.base import Policy
from workers.policies.openai_api import Endpoint, OpenAiPolicy
from workers.policies.scripted import ScriptedPolicy

__all__ = ["make_endpoint", "make_policy"]

ENDPOINT_OPTIONS = (
    *("timeout_seconds", "attempts", "first_wait_seconds", "extra"),
    *("sends_seed", "sends_tools", "sends_reasoning", "logprobs", "token_ids"),
)  # keys of a policy's configuration that are fields of `Endpoint`


def make_endpoint(configuration: Mapping[str, Any], secret: str | None, workers: int = 1) -> Endpoint:
    """Return the endpoint of a policy's stored configuration. `workers` share its limits."""
    options = {name: configuration[name] for name in ENDPOINT_OPTIONS if name in configuration}
    limits = Limits.model_validate(configuration.get("limits") or {}).shared_by(workers)
    return Endpoint(configuration["base_url"], configuration["model"], secret, limits=limits, **options)


def make_policy(
    kind: PolicyKind,
    configuration: Mapping[str, Any],
    secret: str | None = None,
    sampling: Sampling | None = None,
    workers: int = 1,
) -> Policy:
    """Make a scripted or endpoint policy from its stored configuration. Needs no running event loop.

    `workers`: number of workers that share the endpoint's limits.
    """
    match kind:
        case PolicyKind.SCRIPTED:
            return ScriptedPolicy(str(configuration["script"]), configuration.get("constant"))
        case PolicyKind.OPENAI_API:
            return OpenAiPolicy(make_endpoint(configuration, secret, workers), sampling or Sampling())
        case _:
            raise ValueError(f"a policy of the kind {kind} cannot be made here")
