"""Conversations as tokens: the first prompt is rendered once, later messages are appended, and sampled text is never
tokenized again."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, object]]
MessageKey = tuple[tuple[str, str], ...]

_CACHED = 4096  # rendered prompts and replies kept; environments repeat themselves a lot


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
        self._prompt = lru_cache(_CACHED)(self._render_prompt)
        self._encode = lru_cache(_CACHED)(partial(tokenizer.encode, add_special_tokens=False))

    def opening(self, messages: Messages) -> list[int]:
        """The first prompt, up to where the policy begins to write."""
        return self._prompt(_key(messages), is_opening=True)

    def continuation(self, messages: Messages) -> list[int]:
        """The tokens after the end of the policy's reply: these messages, up to where the policy writes again."""
        return self._prompt(_key(messages), is_opening=False)

    def reply(self, text: str) -> list[int]:
        """A reply as if the policy had written it, with its end."""
        return [*self._encode(text), self.end]

    def text_of(self, reply: Sequence[int]) -> str:
        """The reply's text without its end. Special tokens that the policy wrote stay visible."""
        ids = reply[:-1] if reply and reply[-1] == self.end else reply
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _render_prompt(self, key: MessageKey, *, is_opening: bool) -> list[int]:
        before, before_ids = ([], []) if is_opening else (self._before, self._before_ids)
        messages = [{"role": role, "content": content} for role, content in key]
        whole = self._render([*before, *messages], prompts=True)
        if whole[: len(before_ids)] != before_ids:
            raise ChatUnusable("the chat template rewrites earlier turns, so later ones cannot be appended")
        return whole[len(before_ids) :]

    def _render(self, messages: Messages, *, prompts: bool = False) -> list[int]:
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        return list(
            self.tokenizer.apply_chat_template(plain, tokenize=True, return_dict=False, add_generation_prompt=prompts)
        )


def _key(messages: Messages) -> MessageKey:
    return tuple((str(message["role"]), str(message["content"])) for message in messages)
