"""`uvicorn proctor_adapter.app:app`: one session of the wire is one rollout of the library, whose model is the client.

Rewards that compare siblings need all of them: the library starts a group when its last member has reset.
"""

import asyncio
import os
import threading
import uuid
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar

from .conversation import Message, PolicyConversation, PolicyReply, PolicyTurn, as_text, plain
from .library import LIBRARY
from .serving import WireEnvironment, WireState, create_app

MAX_WAIT_SECONDS = 300.0
"""Time limit for the library, or the other members of a group, between two turns."""
_LEFT = "another member of this group left it"


@dataclass(eq=False)
class SiblingGroup:
    """Sessions, often only one, that the library plays and scores as one group."""

    waiting: ClassVar[dict[str, "SiblingGroup"]] = {}
    broken: ClassVar[deque[str]] = deque(maxlen=1000)
    lock: ClassVar[threading.Lock] = threading.Lock()
    name: str
    conversations: list[PolicyConversation] = field(default_factory=list)
    rollout: Future[None] | None = None


class VerifiersEnvironment(WireEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    _conversation: PolicyConversation | None = None
    _group: SiblingGroup | None = None
    _row: object = None
    _known = _steps = 0
    """Number of messages that both sides know, and of replies."""
    _result: Message | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int | None = None,
        group: str = "",
        group_size: int = 1,
        **_: object,
    ) -> PolicyTurn:
        """`group` and `group_size`: play as one of several that are scored together."""
        self.close()
        rows = LIBRARY.rows["heldout" if split == "heldout" else "train"]
        self._row = rows[(index if index is not None else seed or 0) % len(rows)]
        self._conversation, self._known, self._steps, self._result = PolicyConversation(LIBRARY.loop), 0, 0, None
        is_shared = bool(group) and group_size > 1
        name = f"{group}/{split}/{index}" if is_shared else uuid.uuid4().hex
        with SiblingGroup.lock:
            if name in SiblingGroup.broken:
                raise RuntimeError(_LEFT)
            siblings = self._group = SiblingGroup.waiting.setdefault(name, SiblingGroup(name))
            siblings.conversations.append(self._conversation)
            if len(siblings.conversations) == (group_size if is_shared else 1):
                del SiblingGroup.waiting[name]
                play = LIBRARY.play(self._row, siblings.conversations)
                siblings.rollout = asyncio.run_coroutine_threadsafe(play, LIBRARY.loop)
        return self._next_turn(self._conversation)

    def step(self, action: PolicyReply, timeout_s: float | None = None, **_: object) -> PolicyTurn:
        if self._conversation is None or self._result:
            raise RuntimeError("reset first")
        self._steps += 1
        LIBRARY.loop.call_soon_threadsafe(self._conversation.replies.put_nowait, action)
        return self._next_turn(self._conversation)

    def _next_turn(self, conversation: PolicyConversation) -> PolicyTurn:
        messages, tools = conversation.wait(MAX_WAIT_SECONDS)
        if messages is None:
            result = self._result = tools
            rest = (result["prompt"] + result["completion"])[self._known :]
            last = [message for message in rest if message.get("role") != "assistant"]
            metadata = {key: result[key] for key in ("rewards", "stop_condition", "is_truncated")}
            return PolicyTurn(text=as_text(last), messages=last, done=True, reward=result["reward"], metadata=metadata)
        if len(messages) < self._known:  # the library shows a different history than before
            self._known = 0
        new = [plain(message) for message in messages[self._known :]]
        if self._steps:
            new = [message for message in new if message.get("role") != "assistant"]
        self._known = len(messages) + 1  # and the reply that follows
        text = new
        if not self._steps and new and new[0].get("role") == "system" and new[0].get("content") == LIBRARY.system:
            text = new[1:]  # the policy has this system message from the manifest
        return PolicyTurn(text=as_text(text), messages=new, tools=[plain(tool) for tool in tools])

    @property
    def state(self) -> WireState:
        row = self._row  # a row of a dataset, or a task of a taskset
        answer = row.get("answer") if isinstance(row, dict) else getattr(getattr(row, "data", None), "answer", None)
        shown = {"answer": answer} if isinstance(answer, str) else {}
        return WireState(step_count=self._steps, adapter=LIBRARY.describe(), result=self._result or {}, **shown)

    def close(self) -> None:
        """Leave. If siblings still play, they have no one to be compared with and end too."""
        group, self._group = self._group, None
        if group is None or (group.rollout is not None and group.rollout.done()):
            return
        with group.lock:
            if group.rollout is None:
                group.waiting.pop(group.name, None)
                group.broken.append(group.name)
            else:
                group.rollout.cancel()
        for conversation in group.conversations:
            LIBRARY.loop.call_soon_threadsafe(conversation.end, RuntimeError(_LEFT))


app = create_app(
    VerifiersEnvironment,
    PolicyReply,
    PolicyTurn,
    env_name=os.environ["VERIFIERS_MODULE"],
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "16")),
)
