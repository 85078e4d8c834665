"""Conversations as tokens: the first prompt is rendered once, later messages are appended, and sampled text is never
tokenized again.

Chat templates differ in what they can represent. `ChatFormat` is what a template does, found out by rendering short
conversations with it, and how `ChatTokens` works around what it cannot do.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from transformers import PreTrainedTokenizerBase

from backend.domain.environments.prompts import THOUGHT, THOUGHT_END

Messages = Sequence[Mapping[str, object]]
MessageKey = tuple[tuple[str, str], ...]

_CACHED = 4096  # rendered prompts and replies kept; environments repeat themselves a lot
_SYSTEM, _FIRST, _REPLY, _THOUGHT, _LATER = "Qzsystem", "Qzfirst", "Qzreply", "Qzthought", "Qzlater"
"""Texts of the conversations that templates are tried with. No template writes them itself."""
_OPEN_THOUGHT = re.compile(rf"{THOUGHT}\s*$")
_EMPTY_THOUGHT = re.compile(rf"\s*({THOUGHT}\s*({THOUGHT_END}\s*)?)?$")
_FIXED_DATE = (
    "{%- macro strftime_now(format) -%}{{ format | replace('%d', '26') | replace('%b', 'Jul')"
    " | replace('%B', 'July') | replace('%m', '07') | replace('%Y', '2024') | replace('%y', '24')"
    " | replace('%A', 'Friday') | replace('%a', 'Fri') | replace('%H:%M:%S', '12:00:00') }}{%- endmacro -%}"
)
"""26 July 2024, the date that Llama's template falls back to. With today's date, a run that is resumed tomorrow would
read other prompts."""


class ChatUnusable(ValueError):
    """The tokenizer's chat template cannot represent a conversation of several turns."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a chat template writes a conversation."""

    end: str
    """The token that ends the assistant's turn."""
    lead: str = ""
    """White space that the assistant writes before its reply, as after `[/INST]`; usually empty."""
    closing: str = ""
    """Text that the assistant writes between its reply and the end, such as `<|END_RESPONSE|>`; usually empty."""
    folds_system: bool = False
    """It has no system role: the system prompt is put before the first message of the user."""
    merges_turns: bool = False
    """Roles must alternate: several messages of one role in a row become one."""
    moves_system: bool = False
    """It writes the system prompt in the latest message. Here it stays where it was first."""
    drops_reasoning: bool = False
    """It removes the reasoning of earlier replies. Here a reply keeps the tokens that were sampled."""
    opens_reasoning: bool = False
    """Each reply begins inside `<think>`, so the policy writes only the end of it."""
    writes_date: bool = False
    """It writes the date. Here it is always the same one."""

    @property
    def notes(self) -> list[str]:
        """What differs from the template, as sentences."""
        sentences = {
            "It has no system role, so the system prompt is put before the first message.": self.folds_system,
            "Roles must alternate, so messages of the same role in a row are merged.": self.merges_turns,
            "It would move the system prompt to the latest message; Proctor leaves it in the first one.": (
                self.moves_system
            ),
            "It would remove earlier reasoning; Proctor keeps it, so that the policy is trained on what it read."
            " A server that applies the template shows it less.": self.drops_reasoning,
            "Each reply begins inside <think>.": self.opens_reasoning,
            "It writes today's date; Proctor always writes 26 July 2024, so that runs can be repeated.": (
                self.writes_date
            ),
        }
        return [sentence for sentence, applies in sentences.items() if applies]


class ChatTokens:
    """The chat template of one tokenizer, as token lists."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.format = chat_format_of(tokenizer)
        self.end: int = tokenizer.convert_tokens_to_ids(self.format.end)
        if tokenizer.eos_token_id != self.end or tokenizer.pad_token_id in {None, self.end}:
            raise ChatUnusable(
                f"the tokenizer needs {self.format.end}, which ends the assistant's turn, as its end-of-sequence token,"
                " and a padding token that differs from it"
            )
        self._prompt = lru_cache(_CACHED)(self._render_prompt)
        self._encode = lru_cache(_CACHED)(self._encode_later)

    def opening(self, messages: Messages) -> list[int]:
        """The first prompt, up to where the policy begins to write."""
        return self._prompt(_key(messages), is_opening=True)

    def continuation(self, messages: Messages) -> list[int]:
        """The tokens after the end of the policy's reply: these messages, up to where the policy writes again."""
        return self._prompt(_key(messages), is_opening=False)

    def reply(self, text: str, reasoning: str | None = None) -> list[int]:
        """A reply as if the policy had written it, with its end.

        `reasoning`: the environment separates it from the answer, and this is its text, which may be empty. None: the
        text is all that was written. The name of an end token in the text is not an end.
        """
        if reasoning is not None and (reasoning or self.format.opens_reasoning):
            opened = "" if self.format.opens_reasoning else f"{THOUGHT}\n"
            text = f"{opened}{reasoning}\n{THOUGHT_END}\n\n{text}"
        tokens = self._encode(self.format.lead + text + self.format.closing)
        if self.end in tokens:
            tokens = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            tokens = [*self._encode(self.format.lead), *tokens, *self._encode(self.format.closing)]
        return [*tokens, self.end]

    def text_of(self, reply: Sequence[int]) -> str:
        """The reply's text without its end. Special tokens that the policy wrote stay visible."""
        is_ended = bool(reply) and reply[-1] == self.end
        ids = [self.end, *(reply[:-1] if is_ended else reply)]  # at the beginning, some tokenizers drop a space
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        text = text.removeprefix(self.format.end).removeprefix(self.format.lead)
        return text.removesuffix(self.format.closing) if is_ended else text

    def _render_prompt(self, key: MessageKey, *, is_opening: bool) -> list[int]:
        messages: Messages = [{"role": role, "content": content} for role, content in key]
        if self.format.folds_system:
            messages = fold_system(messages)
        if self.format.merges_turns:
            messages = merge_turns(messages)
        if is_opening:
            return list(
                self.tokenizer.encode(_render(self.tokenizer, messages, prompts=True), add_special_tokens=False)
            )
        before = [{"role": "user", "content": _FIRST}, {"role": "assistant", "content": _REPLY}]
        after = _render(self.tokenizer, [*before, *messages], prompts=True).partition(_REPLY)[2]
        closed = self.format.closing + self.format.end
        if not after.startswith(closed):
            raise ChatUnusable(f"the chat template does not end every reply with {closed!r}")
        return self._encode_later(after[len(closed) :])

    def _encode_later(self, text: str) -> list[int]:
        """Tokenize text that follows other text. After a token, some tokenizers add no space, as at the beginning."""
        return list(self.tokenizer.encode(self.format.end + text, add_special_tokens=False)[1:])


def chat_format_of(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """Find out how the tokenizer's chat template writes conversations. Raises ChatUnusable."""
    if not tokenizer.chat_template:
        raise ChatUnusable("the tokenizer has no chat template")
    render = partial(_render, tokenizer)
    first, later = {"role": "user", "content": _FIRST}, {"role": "user", "content": _LATER}
    reply, system = {"role": "assistant", "content": _REPLY}, {"role": "system", "content": _SYSTEM}
    prompt, whole = render([first], prompts=True), render([first, reply, later], prompts=True)
    if not _in_order(whole, _FIRST, _REPLY, _LATER):
        raise ChatUnusable("the chat template does not write all messages of a conversation")
    before, _, after = whole.partition(_REPLY)
    lead = before.removeprefix(prompt)
    started, before = _EMPTY_THOUGHT.sub("", prompt), _EMPTY_THOUGHT.sub("", before)
    if not (started.startswith(before) or before.startswith(started)):
        raise ChatUnusable("the chat template rewrites earlier turns, so later ones cannot be appended")
    if header := before[len(started) :].strip():
        raise ChatUnusable(f"each reply has to begin with {header!r}, which the chat template leaves to the model")
    closing, end = _end_of_turn(tokenizer, after.partition(_LATER)[0])
    last = _first_token(tokenizer, render([first, reply]).partition(_REPLY)[2].removeprefix(closing))
    if last and last[1] != end:
        raise ChatUnusable(f"the chat template ends the last reply with {last[1]}, but earlier ones with {end}")

    def writes(messages: Messages, *texts: str) -> bool:
        """Whether the template writes these texts, in this order, and does not refuse the conversation."""
        try:
            return _in_order(render(messages, prompts=True), *texts)
        except ChatUnusable:
            return False

    thoughtful = {"role": "assistant", "content": f"{THOUGHT}\n{_THOUGHT}\n{THOUGHT_END}\n\n{_REPLY}"}
    folds_system = not writes([system, first], _SYSTEM, _FIRST)
    return ChatFormat(
        end=end,
        lead="" if lead.strip() else lead,
        closing=closing,
        folds_system=folds_system,
        merges_turns=not writes([first, later], _FIRST, _LATER),
        moves_system=not folds_system and not writes([system, first, reply, later], _SYSTEM, _REPLY, _LATER),
        drops_reasoning=not writes([first, thoughtful, later], _THOUGHT, _REPLY, _LATER),
        opens_reasoning=bool(_OPEN_THOUGHT.search(prompt)),
        writes_date="strftime_now" in str(tokenizer.get_chat_template()),
    )


def end_at_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make the token that ends the assistant's turn the end-of-sequence token.

    Some models have another one, such as Gemma, with `<eos>` and `<end_of_turn>`. TRL, exports and servers then stop
    where the policy stops. An unusable template is left alone; `ChatTokens` refuses it.
    """
    try:
        tokenizer.eos_token = chat_format_of(tokenizer).end
    except ChatUnusable:
        return


def fold_system(messages: Messages) -> Messages:
    """Put a system prompt before the text of the first message of the user, as Gemma's own template does since
    version 3."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, rest = messages[0]["content"], messages[1:]
    if not rest or rest[0]["role"] != "user":
        return [{"role": "user", "content": system}, *rest]
    return [{"role": "user", "content": f"{system}\n\n{rest[0]['content']}"}, *rest[1:]]


def merge_turns(messages: Messages) -> list[dict[str, object]]:
    """Merge messages of the same role that follow each other."""
    merged: list[dict[str, object]] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] = f"{merged[-1]['content']}\n\n{message['content']}"
        else:
            merged.append(dict(message))
    return merged


def _render(tokenizer: PreTrainedTokenizerBase, messages: Messages, *, prompts: bool = False) -> str:
    """The conversation as text. Raises ChatUnusable if the template refuses it or fails."""
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    try:
        template = tokenizer.get_chat_template()
        if "strftime_now" in template:
            template = _FIXED_DATE + template
        return str(
            tokenizer.apply_chat_template(plain, chat_template=template, tokenize=False, add_generation_prompt=prompts)
        )
    except Exception as error:  # a template is a program that came with the model
        raise ChatUnusable(f"the chat template fails: {error}") from error


def _end_of_turn(tokenizer: PreTrainedTokenizerBase, between: str) -> tuple[str, str]:
    """The closing text and the end token in the text between a reply and the next message.

    The end is the first token of the vocabulary's added ones; or the end-of-sequence token, if only other added tokens
    come before it.
    """
    if (found := _first_token(tokenizer, between)) is None:
        raise ChatUnusable("the chat template does not end the assistant's turn with a special token")
    closing, end = found
    eos, rest = tokenizer.eos_token, between
    while eos and eos != end and eos in rest and (found := _first_token(tokenizer, rest)) and not found[0].strip():
        rest = rest[len("".join(found)) :]
        if found[1] == eos:
            return between[: len(between) - len(rest) - len(eos)], eos
    return closing, end


def _first_token(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[str, str] | None:
    """The first added token in a text, with the text before it."""
    names = {str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.content.strip()}
    found = [(text.index(name), -len(name), name) for name in names if name in text]
    if not found:
        return None
    place, _, name = min(found)
    return text[:place], name


def _in_order(text: str, *parts: str) -> bool:
    """Whether the text contains these parts, one after the other."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def _key(messages: Messages) -> MessageKey:
    return tuple((str(message["role"]), str(message["content"])) for message in messages)
