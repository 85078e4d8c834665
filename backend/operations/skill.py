"""The guide for agents that use Proctor: `docs/agents.md`."""

from backend.settings import PROJECT_ROOT

SKILL = PROJECT_ROOT / "docs" / "agents.md"


def read_skill() -> str:
    return SKILL.read_text(encoding="utf-8")
