"""Zips that the trainers verl, SkyRL and prime-rl read: completed rollouts by task split, with their tokens, masks and
log-probabilities where they were stored.

Every row says where it comes from: environment, version with its content hash, split, task and rollout.
"""

import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import IO, TYPE_CHECKING

import orjson

from backend.domain.rollouts.conversation import prompt_and_completion, to_foreign
from backend.domain.rollouts.record import SCHEMA
from backend.domain.vocabulary import Split
from backend.rollouts.formats.huggingface import plain_line
from backend.rollouts.formats.native import write_rows
from backend.rollouts.formats.streams import Record, RunFacts, entry, zip_to

if TYPE_CHECKING:
    import pyarrow as pa

Read = Callable[[Split], Iterable[Record]]
SPOOLED = 16 << 20
"""Bytes of a training step that are kept in memory before they are written to disk."""
Columns = Mapping[str, "str | Columns"]
"""Names to Arrow types (`text`, `whole`, `number`, with `*` for lists of them), or to the parts of a struct."""
_TEXTS = ("rollout", "run", "environment", "content_hash", "policy", "split", "arguments")
_WHOLE = ("version", "index", "level", "seed", "group", "member", "training_step")
SOURCE: Columns = {**dict.fromkeys(_TEXTS, "text"), **dict.fromkeys(_WHOLE, "whole")}
PROMPT: Columns = {"*": {"role": "text", "content": "text"}}
MESSAGES: Columns = {"*": {"role": "text", "content": "text", "reasoning_content": "text"}}


@dataclass(frozen=True, slots=True)
class TrainerLayout:
    """The table of one trainer: its files, its columns and the use of the folder."""

    trainer: str
    path: str
    """Path of a split's table."""
    row: Callable[[Record], Record]
    columns: Columns
    usage: str

    def schema(self, facts: RunFacts) -> "pa.Schema":
        import pyarrow as pa

        plain = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}

        def typed(kind: str | Columns) -> "pa.DataType":
            if isinstance(kind, str):
                return pa.list_(plain[kind[:-1]]) if kind.endswith("*") else plain[kind]
            if "*" in kind:
                return pa.list_(typed(kind["*"]))
            return pa.struct([(name, typed(part)) for name, part in kind.items()])

        fields = [(name, typed(kind)) for name, kind in self.columns.items()]
        return pa.schema(fields, metadata={"proctor": orjson.dumps(facts.as_json), "schema": SCHEMA})


def write(
    out: IO[bytes],
    layout: TrainerLayout,
    facts: RunFacts,
    splits: Sequence[Split],
    read: Read,
    means: Mapping[str, float],
) -> Iterator[None]:
    """Write a zip with a table per split and, for prime-rl, a batch per training step.

    `means`: mean rewards by `group_of`.
    """
    where = f"Only rollouts with `{plain_line(facts.where)}`.\n" if facts.where else ""
    card = f"""# Rollouts of {plain_line(facts.policy)} in {facts.environment} for {layout.trainer}

Exported by Proctor {facts.proctor} from the run "{plain_line(facts.name)}" ({facts.id}): environment
{facts.environment}, version {facts.version} (`{facts.content_hash}`).
{where}
Each row is one completed rollout. Failed rollouts have no reward and are not included, nor are rollouts reviewed as a
hack or a broken reward. Tasks of the split `heldout` are in files of their own: do not train on them.

{layout.usage}
"""
    with zip_to(out) as archive:
        for split in splits:
            with entry(archive, layout.path.format(split=split)) as file:
                yield from write_rows(file, layout.schema(facts), map(layout.row, read(split)))
        if layout is PRIME_RL:
            for split in splits:
                yield from _write_batches(archive, f"{split}/rollouts", facts, read(split), means)
        with entry(archive, "README.md") as file:
            file.write(card.encode())
    yield


def group_of(record: Record) -> str:
    """The rollout's group, unique in its run."""
    return f"{record['phase']}/{record.get('training_step') or 0}/{record['group']}"


def source_of(record: Record) -> Record:
    """Where a rollout comes from."""
    task = record["task"]
    arguments = {"arguments": orjson.dumps(task.get("arguments") or {}).decode()}
    names = ("run", "environment", "version", "content_hash", "policy", "group", "member", "training_step")
    place = {name: task.get(name) for name in ("split", "index", "level", "seed")}
    return {"rollout": record["id"], **place, **arguments, **{name: record.get(name) for name in names}}


def _verl_row(record: Record) -> Record:
    prompt, _ = prompt_and_completion(record["messages"])
    tokens = record.get("tokens") or {}
    return {
        "data_source": f"{record['environment']}@{record['version']}",
        "prompt": prompt,
        "ability": record["environment"],
        "reward_model": {"style": "rule", "ground_truth": orjson.dumps(record["task"]).decode()},
        "extra_info": source_of(record),
        "messages": [to_foreign(message) for message in record["messages"]],
        "rollout": {
            "uid": f"{record['run']}/{group_of(record)}",
            "prompts": tokens.get("prompt"),
            "responses": tokens.get("completion"),
            "response_mask": tokens.get("mask"),
            "rollout_log_probs": tokens.get("logprobs"),
            "score": record["reward"],
            "advantage": record.get("advantage"),
        },
    }


def _skyrl_row(record: Record) -> Record:
    prompt, _ = prompt_and_completion(record["messages"])
    tokens = record.get("tokens") or {}
    return {
        "data_source": f"{record['environment']}@{record['version']}",
        "prompt": prompt,
        "env_class": record["environment"],
        "reward_spec": {"method": "rule", "ground_truth": orjson.dumps(record["task"]).decode()},
        "extra_info": source_of(record),
        "messages": [to_foreign(message) for message in record["messages"]],
        "uid": f"{record['run']}/{group_of(record)}",
        "prompt_token_ids": tokens.get("prompt"),
        "response_ids": tokens.get("completion"),
        "loss_masks": tokens.get("mask"),
        "rollout_logprobs": tokens.get("logprobs"),
        "rewards": record["reward"],
        "stop_reasons": "length" if record["is_truncated"] else "stop",
    }


def _prime_rl_row(record: Record) -> Record:
    prompt, completion = prompt_and_completion(record["messages"])
    return {
        "prompt": prompt,
        "completion": [to_foreign(message) for message in completion],
        "reward": record["reward"],
        "advantage": record.get("advantage"),
        "source": source_of(record),
    }


VERL = TrainerLayout(
    trainer="verl",
    path="{split}.parquet",
    row=_verl_row,
    columns={
        "data_source": "text",
        "prompt": PROMPT,
        "ability": "text",
        "reward_model": {"style": "text", "ground_truth": "text"},
        "extra_info": SOURCE,
        "messages": MESSAGES,
        "rollout": {
            "uid": "text",
            "prompts": "whole*",
            "responses": "whole*",
            "response_mask": "whole*",
            "rollout_log_probs": "number*",
            "score": "number",
            "advantage": "number",
        },
    },
    usage="`RLHFDataset` reads `prompt`, `reward_model` and `extra_info`; `MultiTurnSFTDataset` reads `messages`.\n"
    "`reward_model.ground_truth` is the task as JSON. `rollout` has the tokens, named like those of verl's batches.",
)
SKYRL = TrainerLayout(
    trainer="SkyRL",
    path="{split}.parquet",
    row=_skyrl_row,
    columns={
        "data_source": "text",
        "prompt": PROMPT,
        "env_class": "text",
        "reward_spec": {"method": "text", "ground_truth": "text"},
        "extra_info": SOURCE,
        "messages": MESSAGES,
        "uid": "text",
        "prompt_token_ids": "whole*",
        "response_ids": "whole*",
        "loss_masks": "whole*",
        "rollout_logprobs": "number*",
        "rewards": "number",
        "stop_reasons": "text",
    },
    usage="`PromptDataset` reads `prompt` and `env_class`; `SFTTrainer` reads `messages`. `reward_spec.ground_truth`\n"
    "is the task as JSON. The tokens are in columns named like the keys of `GeneratorOutput`.",
)
PRIME_RL = TrainerLayout(
    trainer="prime-rl",
    path="data/{split}-00000-of-00001.parquet",
    row=_prime_rl_row,
    columns={
        "prompt": PROMPT,
        "completion": MESSAGES,
        "reward": "number",
        "advantage": "number",
        "source": SOURCE,
    },
    usage="`data` is a dataset for SFT. `SPLIT/rollouts/step_N/rank_0.bin` holds the micro batches of a training step"
    " for one\ntrainer, one rollout each, of rollouts with tokens and log-probabilities. Their advantage is the one"
    " that was trained\nwith; in an evaluation it is the reward minus the mean reward of the group.",
)


def _write_batches(
    archive: zipfile.ZipFile, folder: str, facts: RunFacts, records: Iterable[Record], means: Mapping[str, float]
) -> Iterator[None]:
    """Write a file per training step: a list of prime-rl's `MicroBatch`, encoded as MessagePack."""
    temperature = facts.sampling.get("temperature")
    degree = float(temperature) if isinstance(temperature, int | float) else 1.0
    for step, same in groupby(records, lambda record: record.get("training_step") or 0):
        count = 0
        with tempfile.SpooledTemporaryFile(SPOOLED) as waiting:
            for record in same:
                if (batch := _micro_batch(record, degree, means)) is not None:
                    waiting.write(pack(batch))
                    count += 1
                yield
            if count:
                waiting.seek(0)
                with entry(archive, f"{folder}/step_{step}/rank_0.bin") as file:
                    file.write(b"\xdd" + count.to_bytes(4, "big"))
                    shutil.copyfileobj(waiting, file, 1 << 20)
        yield


def _micro_batch(record: Record, temperature: float, means: Mapping[str, float]) -> list[object] | None:
    """The fields of a `MicroBatch` in their order, or None if the tokens were not stored whole."""
    tokens = record.get("tokens") or {}
    prompt, completion, mask = tokens.get("prompt"), tokens.get("completion"), tokens.get("mask")
    logprobs = tokens.get("logprobs")
    if not completion or prompt is None or mask is None or logprobs is None:
        return None
    advantage = record.get("advantage")
    if advantage is None:
        advantage = record["reward"] - means[group_of(record)]
    turns = [bool(value) for value, _ in groupby(mask)]
    own = tokens.get("turn_advantages")
    own = iter(own if own and len(own) == sum(turns) else [advantage] * len(turns))
    credit: list[float] = []
    for is_sampled, stretch in groupby(mask):
        value = (next(own) or 0.0) if is_sampled else 0.0
        credit += [float(value)] * len(list(stretch))
    length, start = len(prompt) + len(completion), [0.0] * len(prompt)
    return [
        [*prompt, *completion],
        [*([False] * len(prompt)), *map(bool, mask)],
        [*start, *credit],
        [*start, *(float(value or 0.0) for value in logprobs)],
        list(range(length)),
        [length],
        [temperature] * length,
        [record["environment"]] * length,
        [length],
    ]


def pack(value: object) -> bytes:
    """Encode whole numbers, numbers, booleans, texts and lists of them as MessagePack."""
    match value:
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int() if 0 <= value < 128:
            return bytes((value,))
        case int():
            return b"\xd3" + value.to_bytes(8, "big", signed=True)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            encoded = value.encode()
            return b"\xdb" + len(encoded).to_bytes(4, "big") + encoded
        case list():
            return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(pack, value))
    raise TypeError(f"{type(value).__name__} cannot be packed")
