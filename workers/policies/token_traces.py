"""The tokens of an episode, put together from what an endpoint tells of each answer."""

from workers.policies.base import TextTrace, TokenTrace
from workers.policies.replies import Completion


class Tokens:
    """Ids where each prompt goes on from the tokens before it; else the replies' tokens as text; else nothing."""

    def __init__(self) -> None:
        self._text = TextTrace([], [], [])
        self._ids: TokenTrace | None = None
        self._are_ids_whole = True

    def add(self, completion: Completion) -> None:
        self._text.turns.append(len(self._text.texts))
        self._text.texts += completion.texts
        self._text.logprobs += completion.logprobs
        self._are_ids_whole = self._are_ids_whole and self._add_ids(completion)

    def trace(self) -> TokenTrace | TextTrace | None:
        if self._are_ids_whole and self._ids is not None:
            return self._ids
        return self._text if self._text.texts else None

    def _add_ids(self, completion: Completion) -> bool:
        """False when they are no continuation: the endpoint told none, or its template rewrites earlier turns."""
        if not completion.ids or len(completion.logprobs) != len(completion.ids):
            return False
        if self._ids is None:
            self._ids = TokenTrace(completion.prompt_ids, [], [], [])
        whole = self._ids.prompt + self._ids.completion
        if completion.prompt_ids[: len(whole)] != whole:
            return False
        foreign = completion.prompt_ids[len(whole) :]
        self._ids.completion += foreign + completion.ids
        self._ids.mask += [0] * len(foreign) + [1] * len(completion.ids)
        self._ids.logprobs += [0.0] * len(foreign) + completion.logprobs
        return True
