"""The manifest's `agent` block: how text becomes an action, and how an observation becomes text."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from backend.domain.environments.tools import MAX_TOOLS, Tool
from backend.domain.templates import template_problem

READING = "reading"
"""Validation context of a manifest that an author writes, in contrast to one that was stored."""


class Block(BaseModel):
    """A part of the manifest: no unknown keys, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Tools = Annotated[
    Annotated[list[Tool], Tag("<list>"), Field(min_length=1, max_length=MAX_TOOLS)] | Annotated[str, Tag("<field>")],
    Discriminator(lambda value: "<field>" if isinstance(value, str) else "<list>"),
]


class ActionSpec(Block):
    """How a reply becomes an action."""

    format: Literal["tag", "json", "text", "tool"] = "text"
    tag: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")] | None = None
    field: str | None = None
    """The action's field that takes the text, or the tool's name; json fills all fields itself."""
    type: Literal["string", "integer", "number"] = "string"
    choices: str | None = None
    """The observation's field that lists the values that are legal now (used by the random-legal baseline).
    With tools: calls, each `{name, arguments}`."""
    arguments: str = "arguments"
    """tool: the action's field that takes the call's arguments."""
    tools: _Tools | None = None
    """tool: what may be called, or the observation's field that lists it."""
    text: str | None = None
    """tool: the action's field that takes a reply without any call. Without it, such a reply cannot be read."""
    extra: dict[str, Any] = Field(default={}, max_length=16)
    """tool: constant fields of every action, e.g. `{type: call_tool}`."""
    discover: dict[str, Any] | None = None
    """tool: an action sent once after the reset, because its answer (and no other) lists the tools."""

    @model_validator(mode="after")
    def _complete(self) -> "ActionSpec":
        if self.format == "tag" and not self.tag:
            raise ValueError("format `tag` needs the name of the tag: `tag: move`")
        if self.format in {"tag", "text"} and not self.field:
            raise ValueError(f"format `{self.format}` needs `field`: the action's field that takes the text")
        if self.format == "tool":
            self._complete_tool()
        elif only_tool := [name for name in ("tools", "text", "extra", "discover") if getattr(self, name)]:
            raise ValueError(f"`{only_tool[0]}` belongs to format `tool`")
        return self

    def _complete_tool(self) -> None:
        if not self.field:
            raise ValueError("format `tool` needs `field`: the action's field that takes the tool's name")
        if not self.tools:
            raise ValueError("format `tool` needs `tools`: a list, or the observation's field that lists them")
        filled = [self.field, self.arguments, *([self.text] if self.text else []), *self.extra]
        if len(set(filled)) < len(filled):
            raise ValueError("`field`, `arguments`, `text` and `extra` must name different fields")
        if len(set(self.tool_names)) < len(self.tool_names):
            raise ValueError("two tools have the same name")
        if self.discover and not isinstance(self.tools, str):
            raise ValueError("`discover` is for tools that an observation lists: `tools: <field>`")

    @property
    def tool_names(self) -> list[str]:
        """Schemas of the tools that the manifest lists."""
        return [tool.name for tool in self.tools] if isinstance(self.tools, list) else []

    @property
    def filled_fields(self) -> set[str] | None:
        """The action's fields that a reply may fill; None means all of them."""
        if self.format == "json":
            return None
        names = {self.field, self.arguments, self.text, *self.extra} if self.format == "tool" else {self.field}
        return {name for name in names if name}


class ContextSpec(Block):
    """How much of a conversation the policy reads at each turn."""

    kind: Literal["full", "last"] = "full"
    """last: the system prompt, the first turn, and the last `turns` turns. Turns between them are omitted."""
    turns: int = Field(default=4, ge=1, le=1000)
    """last: an observation and the reply to it are a turn; the observation to be answered now counts."""

    def cuts(self, max_turns: int) -> bool:
        """Whether an episode with this number of turns can exceed the context."""
        return self.kind == "last" and max_turns > self.turns + 1


class AgentSpec(Block):
    """How text becomes an action and an observation becomes text."""

    system: str = ""
    """Where it says `{{ tools }}`, the tools are listed; else they follow it."""
    observation: str = "{{ observation }}"
    """A template over the observation's fields; `observation` is the whole."""
    action: ActionSpec
    on_unparsable: Literal["retry", "end", "pass"] = "retry"
    """retry: explain it to the policy, which costs a turn. end: end the episode. pass: send the raw text on."""
    unparsable_message: str = "Your reply could not be read. {{ problem }}"
    context: ContextSpec = ContextSpec()
    reasoning: Literal["inline", "think"] = "inline"
    """think: what a reply says up to `</think>` is reasoning, kept apart from the answer. inline: it is all answer.
    Reasoning that an endpoint returns in a separate field is kept apart in both."""

    @model_validator(mode="after")
    def _can_pass(self) -> "AgentSpec":
        if self.on_unparsable == "pass" and self.action.format == "tool":
            raise ValueError(
                "`on_unparsable: pass` has nowhere to put the text of a tool call; give `action.text` instead"
            )
        return self

    @field_validator("observation", "unparsable_message")
    @classmethod
    def _renders(cls, text: str, info: ValidationInfo) -> str:
        """Only where a manifest is read: a stored version with a template of older rules still opens."""
        if info.context == READING and (problem := template_problem(text)):
            context = {"message": f"template does not compile: {problem}", "line": problem.line}
            raise PydanticCustomError("template", "{message}", context)
        return text
