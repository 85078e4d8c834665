"""Episodes of several turns: each turn one batch over the games that go on, tokens kept as they were sampled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.bare.game import SYSTEM, Game

MAX_NEW_TOKENS = 32

Sample = Callable[[list[list[int]]], list[list[int]]]
"""Token ids of the conversations so far → token ids of the replies."""


@dataclass(slots=True)
class Played:
    """One episode as TRL wants it."""

    game: Game
    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)


def play(tokenizer: Any, tasks: Sequence[tuple[int, int]], sample: Sample) -> list[Played]:
    """Each task (seed, level) once."""
    episodes = [_begin(tokenizer, Game(seed, level)) for seed, level in tasks]
    playing = list(episodes)
    while playing:
        replies = sample([episode.prompt + episode.completion for episode in playing])
        for episode, reply in zip(playing, replies, strict=True):
            _take(tokenizer, episode, reply)
        playing = [episode for episode in playing if not episode.game.outcome]
    return episodes


def _begin(tokenizer: Any, game: Game) -> Played:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": game.opening}]
    return Played(game, tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def _take(tokenizer: Any, episode: Played, reply: list[int]) -> None:
    """The reply, then what the environment says, which no loss counts."""
    end = tokenizer.eos_token_id
    episode.completion += reply
    episode.mask += [1] * len(reply)
    if reply[-1] != end:
        episode.completion.append(end)
        episode.mask.append(0)
    message = episode.game.step(tokenizer.decode([token for token in reply if token != end]))
    if not episode.game.outcome:
        said = _continuation(tokenizer, message)
        episode.completion += said
        episode.mask += [0] * len(said)


_continuations: dict[tuple[int, str], list[int]] = {}


def _continuation(tokenizer: Any, message: str) -> list[int]:
    """Tokens after a reply's end: the next message and the head of the next reply."""
    key = (id(tokenizer), message)
    if key not in _continuations:
        before = [{"role": "user", "content": "d"}, {"role": "assistant", "content": "d"}]
        head = tokenizer.apply_chat_template(before, return_dict=False)
        head = head[: len(head) - head[::-1].index(tokenizer.eos_token_id)]
        after = [*before, {"role": "user", "content": message}]
        whole = tokenizer.apply_chat_template(after, add_generation_prompt=True, return_dict=False)
        _continuations[key] = whole[len(head) :]
    return _continuations[key]


def generating(model: Any, tokenizer: Any, temperature: float) -> Sample:
    """transformers' `generate` over whole conversations, read anew each turn."""

    def sample(prompts: list[list[int]]) -> list[list[int]]:
        width = max(map(len, prompts))
        pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        was_training = model.training
        model.eval()
        with torch.no_grad():
            whole = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=real.to(model.device),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                pad_token_id=pad,
                eos_token_id=end,
            )
        model.train(was_training)
        return [_until(row, end) for row in whole[:, width:].tolist()]

    return sample


def _until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end) + 1] if end in row else row
