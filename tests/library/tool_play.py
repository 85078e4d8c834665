"""Tool packages, call by call, on a real server."""

from typing import Any

from workers.environments.client import EnvSession, Observation

HELDOUT = 10_000_000


async def reset(session: EnvSession, index: int, levels: int = 4) -> Observation:
    """Held-out task number `index`, as the platform resets it."""
    task = {"seed": HELDOUT + index, "split": "heldout", "level": index % levels, "index": index}
    return await session.reset(task, timeout=10)


async def call(session: EnvSession, tool: str, **arguments: Any) -> Observation:
    return await session.step({"tool": tool, "arguments": arguments}, timeout=10)


async def state(session: EnvSession) -> dict[str, Any]:
    return await session.state(timeout=10)
