"""One session of the wire: one rollout of the library, whose model is the session's client."""

import threading
from collections import deque
from typing import Any

from .library import Library
from .lines import Line, as_text, is_assistant, plain
from .models import Reply, Turn
from .serving import Environment, State

LONGEST_WAIT_SECONDS = 300.0
"""For the library, or for the other members of a group, between two turns."""
LIBRARY = Library()
_LEFT = "another member of this group left it"
_REMEMBERED = 1000


class Group:
    """Sessions that the library plays and scores as one group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[Line] = []
        self.playing: Any = None


class Groups:
    """Rewards that compare siblings need all of them: the library starts when the last one has reset."""

    def __init__(self) -> None:
        self._waiting: dict[str, Group] = {}
        self._broken: deque[str] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def join(self, name: str, size: int, row: Any, line: Line) -> Group:
        with self._lock:
            if name in self._broken:
                raise RuntimeError(_LEFT)
            group = self._waiting.setdefault(name, Group(name))
            group.lines.append(line)
            if len(group.lines) == size:
                del self._waiting[name]
                group.playing = LIBRARY.start(row, group.lines)
        return group

    def leave(self, group: Group) -> None:
        """End a member; the others, if they still play, have no one to be compared with."""
        with self._lock:
            if group.playing is None:
                self._waiting.pop(group.name, None)
                self._broken.append(group.name)
            elif group.playing.done():
                return
            else:
                group.playing.cancel()
        for line in group.lines:
            LIBRARY.loop.call_soon_threadsafe(line.end, RuntimeError(_LEFT))


GROUPS = Groups()


class VerifiersEnvironment(Environment[Reply, Turn, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._line: Line | None = None
        self._playing: Any = None
        self._group: Group | None = None
        self._row: Any = None
        self._heard = 0
        self._steps = 0
        self._result: dict[str, Any] = {}

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int | None = None,
        group: str = "",
        group_size: int = 1,
        **_: Any,
    ) -> Turn:
        """`group` and `group_size`: play as one of several that are scored together."""
        self.close()
        self._row = LIBRARY.row(split, index if index is not None else seed or 0)
        self._line, self._heard, self._steps, self._result = Line(LIBRARY.loop), 0, 0, {}
        if group and group_size > 1:
            self._group = GROUPS.join(f"{group}/{split}/{index}", group_size, self._row, self._line)
        else:
            self._playing = LIBRARY.start(self._row, [self._line])
        return self._listen()

    def step(self, action: Reply, timeout_s: float | None = None, **_: Any) -> Turn:
        if self._line is None or self._result:
            raise RuntimeError("reset first")
        self._steps += 1
        self._line.reply(action)
        return self._listen()

    def _listen(self) -> Turn:
        assert self._line is not None
        messages, told = self._line.hear(LONGEST_WAIT_SECONDS)
        if messages is None:
            return self._end(told)
        if len(messages) < self._heard:  # the library shows another history than what was said
            self._heard = 0
        new = [plain(message) for message in messages[self._heard :] if not is_assistant(message) or not self._steps]
        self._heard = len(messages) + 1  # and the reply that follows
        return Turn(text=self._text(new), messages=new, tools=[plain(tool) for tool in told])

    def _text(self, messages: list[dict[str, Any]]) -> str:
        """Without the system message that the policy has from the manifest."""
        if not self._steps and messages and messages[0].get("role") == "system":
            content = messages[0].get("content")
            if content == LIBRARY.system:
                messages = messages[1:]
        return as_text(messages)

    def _end(self, result: dict[str, Any]) -> Turn:
        self._result = result
        said = (result["prompt"] + result["completion"])[self._heard :]
        last = [message for message in said if message.get("role") != "assistant"]
        metadata = {key: result[key] for key in ("rewards", "stop_condition", "is_truncated")}
        return Turn(text=as_text(last), messages=last, done=True, reward=result["reward"], metadata=metadata)

    @property
    def state(self) -> State:
        answer = LIBRARY.answer(self._row) if self._row is not None else None
        told = {} if answer is None else {"answer": answer}
        return State(step_count=self._steps, adapter=LIBRARY.described(), result=self._result, **told)

    def close(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
            self._playing = None
        if self._group is not None:
            GROUPS.leave(self._group)
            self._group = None
