"""Conversations as tokens: the first prompt whole, later messages appended, sampled text never tokenised again."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Messages = Sequence[dict[str, Any]]
Key = TypeVar("Key")

_REMEMBERED = 4096
"""Rendered messages kept; environments repeat themselves a lot."""


class ChatUnusable(ValueError):
    """The tokenizer's chat template cannot carry a conversation of several turns."""


class ChatTokens:
    """The chat template of one tokenizer, as token lists."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        if not tokenizer.chat_template:
            raise ChatUnusable("the tokenizer has no chat template")
        if self.end is None or tokenizer.pad_token_id in {None, self.end}:
            raise ChatUnusable("the tokenizer needs an end-of-sequence token and a padding token that differs from it")
        self._before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
        self._before_ids = self._up_to_end(self._render(self._before))
        self._openings: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self._continuations: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self._replies: dict[str, list[int]] = {}

    def opening(self, messages: Messages) -> list[int]:
        """The first prompt, up to where the policy begins to write."""
        return self._remember(self._openings, _key(messages), lambda: self._render(messages, prompts=True))

    def continuation(self, messages: Messages) -> list[int]:
        """What follows the end of the policy's reply: these messages, up to where the policy writes again."""
        return self._remember(self._continuations, _key(messages), lambda: self._after_reply(messages))

    def reply(self, text: str) -> list[int]:
        """A reply as if the policy had written it, with its end."""
        return self._remember(
            self._replies, text, lambda: [*self.tokenizer.encode(text, add_special_tokens=False), self.end]
        )

    def text_of(self, reply: Sequence[int]) -> str:
        """The reply's text without its end; special tokens that the policy wrote stay visible."""
        ids = reply[:-1] if reply and reply[-1] == self.end else reply
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _after_reply(self, messages: Messages) -> list[int]:
        whole = self._render([*self._before, *messages], prompts=True)
        if whole[: len(self._before_ids)] != self._before_ids:
            raise ChatUnusable("the chat template rewrites earlier turns, so that later ones cannot be appended")
        return whole[len(self._before_ids) :]

    def _up_to_end(self, ids: list[int]) -> list[int]:
        if self.end not in ids:
            raise ChatUnusable("the chat template does not end the assistant's turn with the end-of-sequence token")
        return ids[: len(ids) - ids[::-1].index(self.end)]

    def _render(self, messages: Messages, *, prompts: bool = False) -> list[int]:
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        return list(
            self.tokenizer.apply_chat_template(plain, tokenize=True, return_dict=False, add_generation_prompt=prompts)
        )

    @staticmethod
    def _remember(known: dict[Key, list[int]], key: Key, make: Callable[[], list[int]]) -> list[int]:
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = make()
        return known[key]


def _key(messages: Messages) -> tuple[tuple[str, str], ...]:
    return tuple((str(message["role"]), str(message["content"])) for message in messages)
