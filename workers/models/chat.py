"""Conversations as tokens: the first prompt is rendered once, later messages are appended, and sampled text is never
tokenized again."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, object]]
MessageKey = tuple[tuple[str, str], ...]
Key = TypeVar("Key")

_CACHED = 4096
"""Rendered messages kept. Environments repeat themselves a lot."""


class ChatUnusable(ValueError):
    """The tokenizer's chat template cannot represent a conversation of several turns."""


class ChatTokens:
    """The chat template of one tokenizer, as token lists."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        if not tokenizer.chat_template:
            raise ChatUnusable("the tokenizer has no chat template")
        if self.end is None or tokenizer.pad_token_id in {None, self.end}:
            raise ChatUnusable("the tokenizer needs an end-of-sequence token and a padding token that differs from it")
        self._before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
        rendered = self._render(self._before)
        if self.end not in rendered:
            raise ChatUnusable("the chat template does not end the assistant's turn with the end-of-sequence token")
        self._before_ids = rendered[: len(rendered) - rendered[::-1].index(self.end)]
        self._openings: dict[MessageKey, list[int]] = {}
        self._continuations: dict[MessageKey, list[int]] = {}
        self._replies: dict[str, list[int]] = {}

    def opening(self, messages: Messages) -> list[int]:
        """The first prompt, up to where the policy begins to write."""
        return _cached(self._openings, _key(messages), lambda: self._render(messages, prompts=True))

    def continuation(self, messages: Messages) -> list[int]:
        """The tokens after the end of the policy's reply: these messages, up to where the policy writes again."""

        def render() -> list[int]:
            whole = self._render([*self._before, *messages], prompts=True)
            if whole[: len(self._before_ids)] != self._before_ids:
                raise ChatUnusable("the chat template rewrites earlier turns, so later ones cannot be appended")
            return whole[len(self._before_ids) :]

        return _cached(self._continuations, _key(messages), render)

    def reply(self, text: str) -> list[int]:
        """A reply as if the policy had written it, with its end."""
        encode = self.tokenizer.encode
        return _cached(self._replies, text, lambda: [*encode(text, add_special_tokens=False), self.end])

    def text_of(self, reply: Sequence[int]) -> str:
        """The reply's text without its end. Special tokens that the policy wrote stay visible."""
        ids = reply[:-1] if reply and reply[-1] == self.end else reply
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _render(self, messages: Messages, *, prompts: bool = False) -> list[int]:
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        return list(
            self.tokenizer.apply_chat_template(plain, tokenize=True, return_dict=False, add_generation_prompt=prompts)
        )


def _cached(cache: dict[Key, list[int]], key: Key, render: Callable[[], list[int]]) -> list[int]:
    if key not in cache:
        if len(cache) >= _CACHED:
            cache.clear()
        cache[key] = render()
    return cache[key]


def _key(messages: Messages) -> MessageKey:
    return tuple((str(message["role"]), str(message["content"])) for message in messages)
