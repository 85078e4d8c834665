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

    @classmethod
    def join(cls, name: str, size: int, row: object, conversation: PolicyConversation) -> "SiblingGroup":
        with cls.lock:
            if name in cls.broken:
                raise RuntimeError(_LEFT)
            group = cls.waiting.setdefault(name, cls(name))
            group.conversations.append(conversation)
            if len(group.conversations) == size:
                del cls.waiting[name]
                group.rollout = asyncio.run_coroutine_threadsafe(LIBRARY.play(row, group.conversations), LIBRARY.loop)
        return group

    def leave(self) -> None:
        """End a member. If the others still play, they have no one to be compared with and end too."""
        with self.lock:
            if self.rollout is None:
                self.waiting.pop(self.name, None)
                self.broken.append(self.name)
            elif self.rollout.done():
                return
            else:
                self.rollout.cancel()
        for conversation in self.conversations:
            LIBRARY.loop.call_soon_threadsafe(conversation.end, RuntimeError(_LEFT))


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
        is_shared = group and group_size > 1
        name = f"{group}/{split}/{index}" if is_shared else uuid.uuid4().hex
        self._group = SiblingGroup.join(name, group_size if is_shared else 1, self._row, self._conversation)
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
        answer = LIBRARY.answer(self._row) if self._row is not None else None
        shown = {} if answer is None else {"answer": answer}
        return WireState(step_count=self._steps, adapter=LIBRARY.describe(), result=self._result or {}, **shown)

    def close(self) -> None:
        if self._group is not None:
            self._group.leave()
            self._group = None


app = create_app(
    VerifiersEnvironment,
    PolicyReply,
    PolicyTurn,
    env_name=os.environ["VERIFIERS_MODULE"],
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "16")),
)
