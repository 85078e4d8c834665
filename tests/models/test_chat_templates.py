"""Chat templates of model families, as TRL ships them: whole conversations token by token, and what is trained.

The tokenizer is a small one that has the tokens of the template, so that nothing is downloaded.
"""

import re
from importlib.resources import files
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from backend.domain.environments.tools import write_call
from backend.domain.training.examples import Conversation
from workers.models.build import build_tokenizer
from workers.models.chat import ChatTokens, ChatUnusable, end_at_turns
from workers.models.load import ModelSource, read_tokenizer
from workers.training.examples import example_of_conversation
from workers.training.exporting.inference import has_system_role

TEMPLATES = files("trl") / "chat_templates"
SPECIAL = re.compile(r"<[|｜]?[a-zA-Z_▁]+[|｜]?>|</s>|\[/?INST\]")
CALL = write_call("add", {"number": 1, "note": 'an "odd" one\n'})
TALK = [
    {"role": "system", "content": "You play."},
    {"role": "user", "content": "You start."},
    {"role": "assistant", "content": CALL},
    {"role": "user", "content": "O plays 3."},
    {"role": "assistant", "content": "<move>1</move>"},
    {"role": "user", "content": "O plays 5."},
]
FAMILIES = {
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>",
    "qwen3_5_nothink": "<|im_end|>",
    "qwen3_8": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
    "phi3": "<|end|>",
    "phi3_5": "<|end|>",
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "deepseek_r1_distill": "<｜end▁of▁sentence｜>",
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "glm4moe": "<|user|>",
    "lfm2": "<|im_end|>",
    "nemotron_3_nano": "<|im_end|>",
}
"""The end of the turn of the assistant. The tokenizers of the tests have another end-of-sequence token."""
FOLDING = {"gemma"}
DROPPING = {
    *("qwen3", "qwen3_5_think", "qwen3_5_nothink", "deepseekv3", "deepseek_r1_distill", "glm4moe", "nemotron_3_nano")
}
OPEN = {"qwen3_5_think", "qwen3_8", "deepseekv3", "deepseek_r1_distill", "nemotron_3_nano"}
DATED = {"llama3_2"}


def tokenizer_of(template: str, eos: str = "<eos>") -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer(["abc"], context=4096)
    names = [*sorted({*SPECIAL.findall(template), eos} - {"<think>"}), "<tool_call>", "</tool_call>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    tokenizer.eos_token, tokenizer.bos_token, tokenizer.chat_template = eos, "<s>", template
    return tokenizer


def shipped(family: str) -> PreTrainedTokenizerFast:
    tokenizer = tokenizer_of((TEMPLATES / f"{family}.jinja").read_text())
    end_at_turns(tokenizer)
    return tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_has_the_tokens_of_the_template_and_exactly_the_replies_are_trained(family: str) -> None:
    tokenizer = shipped(family)
    chat = ChatTokens(tokenizer)
    written = chat.format
    assert (written.end, written.closing) == (FAMILIES[family], "")
    assert written.folds_system == (family in FOLDING)
    assert written.drops_reasoning == (family in DROPPING)
    assert written.opens_reasoning == (family in OPEN)
    assert written.writes_date == (family in DATED)

    example = example_of_conversation(Conversation(TALK[:5], (True, True)), chat)
    assert example is not None
    trained = [token for token, counts in zip(example.completion, example.mask, strict=True) if counts]
    call, move = (tokenizer.encode(text, add_special_tokens=False) for text in (CALL, "<move>1</move>"))
    assert trained == [*call, chat.end, *move, chat.end]
    # the same conversation as the template writes it, up to where the policy writes for the third time
    talk = [{"role": "user", "content": "You play.\n\nYou start."}, *TALK[2:]] if family in FOLDING else TALK
    theirs = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    ours = tokenizer.decode([*example.tokens, *chat.continuation(TALK[5:])])
    if family in DATED:
        assert "26 Jul 2024" in ours
        theirs = re.sub(r"\d\d \w{3} \d{4}(?=\n\nYou play)", "26 Jul 2024", theirs)
    if family in OPEN | {"glm4moe", "qwen3_5_nothink"}:  # an empty thought for a reply without one
        theirs, ours = ("".join(re.sub(r"<think>(\s*</think>)?", "", text).split()) for text in (theirs, ours))
    assert ours == theirs


@pytest.mark.parametrize("family", ["cohere", "gemma3", "lfm2", "llama3", "phi3_5", "qwen2_5", "qwen3_instruct_2507"])
def test_the_trained_tokens_are_those_that_trls_training_template_marks(family: str) -> None:
    """TRL also marks what the template writes after the end, which no model has to write, and Qwen's line break
    before the reply."""
    tokenizer = shipped(f"{family}_training")
    chat = ChatTokens(tokenizer)
    example = example_of_conversation(Conversation(TALK[:5], (True, True)), chat)
    assert example is not None
    marked = tokenizer.apply_chat_template(TALK[:5], tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    mask, masks = [0] * len(example.prompt) + example.mask, marked["assistant_masks"]
    assert marked["input_ids"][: len(mask)] == example.tokens
    assert all(theirs for ours, theirs in zip(mask, masks, strict=False) if ours)
    more = [token for token, ours, theirs in zip(example.tokens, mask, masks, strict=False) if theirs and not ours]
    assert tokenizer.decode(more).strip() == ""


def test_reasoning_is_kept_where_the_template_would_remove_it_and_closed_where_it_is_open() -> None:
    chat, plain = ChatTokens(shipped("qwen3_5_think")), ChatTokens(shipped("qwen2_5"))
    reply = chat.text_of(chat.reply("<move>4</move>", "The center is free."))
    assert reply == "The center is free.\n</think>\n\n<move>4</move>"  # the prompt opened it
    assert chat.text_of(chat.reply("<move>4</move>", "")) == "\n</think>\n\n<move>4</move>"
    assert plain.text_of(plain.reply("<move>4</move>", "Free.")) == "<think>\nFree.\n</think>\n\n<move>4</move>"
    assert plain.text_of(plain.reply("<move>4</move>", "")) == plain.text_of(plain.reply("<move>4</move>"))
    # the next turn does not depend on it: what was sampled stays
    assert chat.tokenizer.decode(chat.continuation(TALK[3:4])) == (
        "\n<|im_start|>user\nO plays 3.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_an_export_folds_the_system_prompt_like_training() -> None:
    assert not has_system_role(shipped("gemma"))
    assert has_system_role(shipped("gemma3"))


def test_a_reply_that_names_the_end_token_ends_only_once() -> None:
    chat = ChatTokens(shipped("qwen2_5"))
    reply = chat.reply("I write <|im_end|> and go on.")
    assert reply.count(chat.end) == 1
    assert chat.text_of(reply) == "I write <|im_end|> and go on."


ALTERNATING = (
    "{{ bos_token }}{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% set messages = messages[1:] if system else messages %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST]{% if loop.last and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ m['content'] }}[/INST]{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)
"""As Mistral's: no roles but brackets, strict turns, and the system prompt in the latest message of the user."""


def test_a_system_prompt_stays_first_and_messages_in_a_row_are_merged_if_roles_must_alternate() -> None:
    tokenizer = tokenizer_of(ALTERNATING, eos="</s>")
    chat = ChatTokens(tokenizer)
    assert (chat.format.end, chat.format.merges_turns, chat.format.moves_system) == ("</s>", True, True)
    opening, later = chat.opening(TALK[:2]), chat.continuation([*TALK[3:4], *TALK[5:]])
    assert tokenizer.decode(opening) == "<s>[INST]You play.\n\nYou start.[/INST]"
    assert tokenizer.decode(later) == "[INST]O plays 3.\n\nO plays 5.[/INST]"
    assert any("Roles must alternate" in note for note in chat.format.notes)


@pytest.mark.parametrize("lead", ["", " "])
def test_a_sentencepiece_tokenizer_adds_no_space_but_that_of_the_template(lead: str) -> None:
    words = ["You", "▁You", "▁play", "four", "▁four", "</s>", "<unk>", "<pad>", "[INST]", "[/INST]", "<s>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    specials = ["[INST]", "[/INST]"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=specials,
    )
    tokenizer.chat_template = ALTERNATING.replace("{% else %}{{ m", f"{{% else %}}{{{{ '{lead}' + m")
    chat = ChatTokens(tokenizer)
    talk = [{"role": "user", "content": "You play"}, {"role": "assistant", "content": "four"}]
    whole = tokenizer.apply_chat_template([*talk, talk[0]], tokenize=True, return_dict=False)
    later = chat.continuation(talk[:1])
    assert [*chat.opening(talk[:1]), *chat.reply("four"), *later[:-1]] == whole[:-1]
    assert tokenizer.convert_ids_to_tokens(chat.reply("four")) == ["▁four" if lead else "four", "</s>"]
    assert chat.text_of(chat.reply("four")) == "four"


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("gptoss", "each reply has to begin with '<|channel|>final<|message|>'"),
        ("muse_glimmer", "each reply has to begin with 'to=user<|message|>'"),
        ("smolvlm", "does not write all messages"),
        ("llava_next", "the chat template fails"),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused_with_the_reason(family: str, message: str) -> None:
    with pytest.raises(ChatUnusable, match=re.escape(message)):
        ChatTokens(shipped(family))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only tools here') }}", "the chat template fails: only tools here"),
        (
            "{% for m in messages %}{{ '<turn>' + m['content'] }}"
            "{{ '<return>' if loop.last and m['role'] == 'assistant' else '<end>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<turn>' }}{% endif %}",
            "ends the last reply with <return>, but earlier ones with <end>",
        ),
    ],
)
def test_the_reason_names_what_the_template_does(template: str, message: str) -> None:
    with pytest.raises(ChatUnusable, match=message):
        ChatTokens(tokenizer_of(template))


def test_the_end_of_the_turn_replaces_another_end_of_sequence_token(tmp_path: Any) -> None:
    tokenizer = tokenizer_of((TEMPLATES / "gemma.jinja").read_text())
    with pytest.raises(ChatUnusable, match="needs <end_of_turn>"):
        ChatTokens(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = read_tokenizer(ModelSource(str(tmp_path)))
    assert loaded.eos_token == "<end_of_turn>"
    assert ChatTokens(loaded).end == loaded.eos_token_id
