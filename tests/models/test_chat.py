"""Conversations as tokens."""

from typing import Any

import pytest

from tests.models.conftest import SYSTEM
from workers.models.build import build_tokenizer
from workers.models.chat import ChatTokens, ChatUnusable

TALK = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "You start."},
    {"role": "assistant", "content": "<move>4</move>"},
    {"role": "user", "content": "O plays 3."},
    {"role": "assistant", "content": "<move>1</move>"},
]


def test_appended_pieces_equal_the_whole_conversation(tokenizer: Any) -> None:
    chat = ChatTokens(tokenizer)
    pieces = [
        *chat.opening(TALK[:2]),
        *chat.reply("<move>4</move>"),
        *chat.continuation(TALK[3:4]),
        *chat.reply("<move>1</move>"),
    ]
    assert pieces == tokenizer.apply_chat_template(TALK, tokenize=True, return_dict=False)


def test_the_text_of_a_reply_has_no_end_but_keeps_what_else_was_written(tokenizer: Any) -> None:
    chat = ChatTokens(tokenizer)
    assert chat.text_of(chat.reply("<move>4</move>")) == "<move>4</move>"
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    assert chat.text_of([user, chat.end]) == "<|user|>"


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    tokenizer = build_tokenizer(["abc"])
    tokenizer.chat_template = (
        "{%- for m in messages %}{{ '<|user|>' ~ messages|length ~ m['content'] + '<|end|>' }}{%- endfor %}"
    )
    with pytest.raises(ChatUnusable, match="rewrites earlier turns"):
        ChatTokens(tokenizer)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        ({"chat_template": None}, "no chat template"),
        ({"pad_token": "<|end|>"}, "padding token that differs"),
        ({"chat_template": "{%- for m in messages %}{{ m['content'] }}{%- endfor %}"}, "does not end"),
    ],
)
def test_an_unusable_tokenizer_is_refused(break_it: dict[str, Any], message: str) -> None:
    tokenizer = build_tokenizer(["abc"])
    for name, value in break_it.items():
        setattr(tokenizer, name, value)
    with pytest.raises(ChatUnusable, match=message):
        ChatTokens(tokenizer)
