"""Who acts: scripts, hosted models, people. Local models live in `workers.models`, because torch does."""

from collections.abc import Mapping
from typing import Any

from backend.domain.plans import Sampling
from backend.domain.vocabulary import PolicyKind
from workers.policies.base import Policy
from workers.policies.openai_api import Endpoint, OpenAiPolicy
from workers.policies.scripted import ScriptedPolicy

__all__ = ["make_policy"]


def make_policy(
    kind: PolicyKind,
    configuration: Mapping[str, Any],
    secret: str | None = None,
    sampling: Sampling | None = None,
) -> Policy:
    """The policy that a row describes; not for local models and people. Needs no running loop yet."""
    match kind:
        case PolicyKind.SCRIPTED:
            return ScriptedPolicy(str(configuration["script"]), configuration.get("constant"))
        case PolicyKind.OPENAI_API:
            optional = ("timeout_seconds", "attempts", "extra", "sends_seed", "sends_tools")
            chosen = {name: configuration[name] for name in optional if name in configuration}
            endpoint = Endpoint(configuration["base_url"], configuration["model"], secret, **chosen)
            return OpenAiPolicy(endpoint, sampling or Sampling())
        case _:
            raise ValueError(f"a {kind} policy is not made here")
