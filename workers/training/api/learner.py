"""The model of the training API: one frozen base with an adapter per client's model. Used from one thread.

Weights are kept as safetensors with peft's configuration and the record of the base, so that `proctor serve` and
transformers load them. Nothing is unpickled.
Shapes: B sequences, T tokens, V vocabulary.
"""

import json
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from workers.models.load import CONFIGURATION_FILE, RECORD_FILE, record_of
from workers.models.sampling import Row, Sampler
from workers.training.api.wire import (
    AdamParams,
    Datum,
    LoraShape,
    PassRequest,
    PassResult,
    SampledTokens,
    SampleRequest,
    SampleResult,
)

ALPHA = 32
"""Scale of every adapter, whatever its rank; Tinker's clients choose learning rates for it."""
BATCH_LOGITS = 1 << 28
"""Logits of a batch with its padding; larger ones are divided into several, which changes no gradient."""
ATTACHED = 4
"""Saved weights that are kept in memory to sample from."""
FREE_BYTES = 1 << 30
"""Disk space that a save leaves free."""
WEIGHTS_FILE, OPTIMIZER_FILE, SHAPE_FILE = "adapter_model.safetensors", "optimizer.safetensors", "shape.json"
_STOP_MARGIN = 8  # tokens that a stop sequence may begin before its own length
_MAX_LOG_RATIO = 20.0


class Refused(ValueError):
    """The request does not fit the model. The message is for the client."""


@dataclass(eq=False)
class LearningModel:
    """One adapter that a client trains."""

    adapter: str
    shape: LoraShape
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.AdamW
    has_gradients: bool = False


class Learner:
    """Trains and samples the adapters of one base."""

    def __init__(self, model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.record = record_of(model)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.context: int = getattr(model.config, "max_position_embeddings", None) or 1 << 17
        self.models: dict[str, LearningModel] = {}
        self._attached: OrderedDict[Path, str] = OrderedDict()
        self._adapters = 0
        self._layers = _layers_of(model.get_base_model())
        self._device = next(model.parameters()).device

    @property
    def has_output_layer(self) -> bool:
        """Whether `train_unembed` has an effect: not if the base uses its input embeddings as its output."""
        return bool(self._layers["unembed"])

    def create(self, model_id: str, shape: LoraShape) -> None:
        """Add an adapter that does not change the base yet."""
        with torch.random.fork_rng():
            torch.manual_seed(shape.seed or 0)
            adapter = self._add(shape)
        self.model.set_adapter(adapter)
        parameters = [each for name, each in self.model.named_parameters() if f".{adapter}." in name]
        optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
        self.models[model_id] = LearningModel(adapter, shape, parameters, optimizer)

    def remove(self, model_id: str) -> None:
        if (model := self.models.pop(model_id, None)) is not None:
            self.model.delete_adapter(model.adapter)

    def run_pass(self, request: PassRequest) -> PassResult:
        """Compute log-probabilities and the loss, a sum over tokens; add its gradients unless only forward."""
        model, loss = self._model(request.model_id), _LOSSES.get(request.loss)
        if loss is None:
            raise Refused(f"the loss {request.loss!r} is not supported; choose one of {', '.join(_LOSSES)}")
        compute, names, defaults = loss
        if unknown := set(request.settings) - set(defaults):
            raise Refused(f"{request.loss} has no setting {', '.join(sorted(unknown))}")
        if request.problem or not request.data:
            raise Refused(request.problem or "the request has no data")
        for place, datum in enumerate(request.data):
            self._check(datum, names, f"sequence {place}")
        settings = {**defaults, **request.settings}
        self.model.set_adapter(model.adapter)
        logprobs: list[torch.Tensor] = [torch.zeros(0)] * len(request.data)
        total = 0.0
        is_complete = False
        try:
            for places in _batches([len(datum.tokens) for datum in request.data], BATCH_LOGITS // self.vocabulary):
                batch = [request.data[place] for place in places]
                with torch.set_grad_enabled(not request.is_forward_only):
                    own = self._target_logprobs(batch)
                    given = [
                        {name: torch.from_numpy(each.inputs[name].copy()).to(own[0]) for name in names}
                        for each in batch
                    ]
                    summed = torch.stack([compute(*pair, settings) for pair in zip(own, given, strict=True)]).sum()
                    if not torch.isfinite(summed):
                        raise Refused("the loss is not finite; the gradients since the last step were dropped")
                    if not request.is_forward_only:
                        summed.backward()  # type: ignore[no-untyped-call]
                for place, values in zip(places, own, strict=True):
                    logprobs[place] = values.detach().float().cpu()
                total += float(summed.detach())
            is_complete = True
        finally:
            if not is_complete and not request.is_forward_only:  # a part of the gradients is worse than none
                self._drop_gradients(model)
        model.has_gradients = model.has_gradients or not request.is_forward_only
        return PassResult([each.numpy() for each in logprobs], {"loss:sum": total})

    def step(self, model_id: str, params: AdamParams) -> dict[str, float]:
        """Apply the gradients since the last step with AdamW."""
        model = self._model(model_id)
        if not model.has_gradients:
            raise Refused("there are no gradients: call forward_backward before optim_step")
        norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters if each.grad is not None])
        if not torch.isfinite(norm):
            self._drop_gradients(model)
            raise Refused("the gradient is not finite; it was dropped and the weights did not change")
        if params.grad_clip_norm:
            torch.nn.utils.clip_grads_with_norm_(model.parameters, params.grad_clip_norm, norm)
        for group in model.optimizer.param_groups:
            group["lr"], group["betas"] = params.learning_rate, (params.beta1, params.beta2)
            group["eps"], group["weight_decay"] = params.eps, params.weight_decay
        model.optimizer.step()
        self._drop_gradients(model)
        return {"grad_norm": float(norm)}

    def save(self, model_id: str, folder: Path, *, with_optimizer: bool = False, is_temporary: bool = False) -> None:
        """Write the weights to a folder, which appears when it is complete and replaces an earlier one.

        Temporary weights are only sampled from here; others can also be loaded elsewhere.
        """
        model = self._model(model_id)
        needed = sum(each.nbytes for each in model.parameters) * (3 if with_optimizer else 1)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free < needed + FREE_BYTES:
            raise Refused("the server's disk is full: nothing was saved")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".saving-") as scratch:
            written = Path(scratch) / "weights"
            written.mkdir()
            weights = get_peft_model_state_dict(self.model, adapter_name=model.adapter, save_embedding_layers=False)
            save_file(
                {name: each.detach().cpu().contiguous() for name, each in weights.items()}, written / WEIGHTS_FILE
            )
            (written / SHAPE_FILE).write_text(model.shape.model_dump_json())
            if not is_temporary:
                self._describe(model, written)
            if with_optimizer:
                save_file(_optimizer_tensors(model), written / OPTIMIZER_FILE)
            self.detach(folder)
            shutil.rmtree(folder, ignore_errors=True)
            written.rename(folder)

    def _describe(self, model: LearningModel, folder: Path) -> None:
        """Add what peft, transformers and `proctor serve` need to load the weights."""
        configuration = self.model.peft_config[model.adapter].to_dict()
        layers = sorted(configuration["target_modules"])
        configuration |= {"inference_mode": True, "target_modules": layers, "base_model_name_or_path": None}
        (folder / CONFIGURATION_FILE).write_text(json.dumps(configuration, default=str, indent=2))
        if self.record is not None:
            targets = sorted({name.rpartition(".")[2] for name in layers})
            record = self.record.model_copy(update={"rank": model.shape.rank, "alpha": ALPHA, "targets": targets})
            (folder / RECORD_FILE).write_text(record.model_dump_json(indent=2))
        self.tokenizer.save_pretrained(folder)

    def load(self, model_id: str, folder: Path, *, with_optimizer: bool) -> LoraShape:
        """Load saved weights into a model of the same shape, or create it with them."""
        shape = read_shape(folder)
        if (model := self.models.get(model_id)) is None:
            self.create(model_id, shape)
            model = self.models[model_id]
        elif model.shape.model_copy(update={"seed": shape.seed}) != shape:
            raise Refused("these weights have another rank or other layers than the model")
        set_peft_model_state_dict(self.model, load_file(folder / WEIGHTS_FILE), adapter_name=model.adapter)
        self._drop_gradients(model)
        model.optimizer.state.clear()
        if with_optimizer:
            if not (folder / OPTIMIZER_FILE).exists():
                raise Refused("these weights were saved without the state of the optimizer")
            for name, tensor in load_file(folder / OPTIMIZER_FILE).items():
                place, _, part = name.partition(".")
                parameter = model.parameters[int(place)]
                value = tensor if part == "step" else tensor.to(parameter)
                model.optimizer.state[parameter][part] = value
        return shape

    def sample(
        self,
        folder: Path | None,
        requests: Sequence[SampleRequest],
        seeds: Sequence[int],
        is_over: Callable[[int], bool] = lambda _: False,
    ) -> list[SampleResult]:
        """Sample from saved weights, or from the base. All requests have the same temperature, top_k and top_p.

        `is_over`: whether a request, by its place, is no longer needed.
        """
        params = requests[0].sampling_params
        end = -1 if params.stop == [] else self.tokenizer.eos_token_id
        results = [SampleResult() for _ in requests]
        rows: list[tuple[int, Row, int]] = []
        for place, (request, seed) in enumerate(zip(requests, seeds, strict=True)):
            tokens = request.prompt.tokens
            room = self.context - len(tokens)
            limit = min(request.sampling_params.max_tokens or room, room)
            for member in range(request.num_samples):
                random = np.random.Generator(np.random.PCG64((seed + member) % 2**63))
                rows.append((place, Row(list(tokens), random), limit))
        with self._sampling_from(folder):
            for request, result in zip(requests, results, strict=True):
                if request.prompt_logprobs:
                    result.prompt_logprobs = self._prompt_logprobs(request)
            sampler = Sampler(
                self.model,
                end=end,
                pad=self.tokenizer.pad_token_id,
                temperature=params.temperature,
                top_k=max(params.top_k, 0),
                top_p=params.top_p,
            )
            stops = [_Stops(self.tokenizer, requests[place]) for place, _, _ in rows]

            def watch(_: int, tokens: Sequence[int], __: Sequence[float]) -> list[int]:
                over = [is_over(place) for place in range(len(requests))]
                return [row for row, stop in enumerate(stops) if stop.ends(tokens[row]) or over[rows[row][0]]]

            limits = [limit for _, _, limit in rows]
            sampled = sampler.sample([row for _, row, _ in rows], limits, watch)
        for (place, _, limit), stop, each in zip(rows, stops, sampled, strict=True):
            has_ended = each.tokens[-1] == end or stop.has_ended
            is_cut = len(each.tokens) >= limit and not has_ended
            results[place].sequences.append(SampledTokens(each.tokens, each.logprobs, is_cut))
        return results

    def check_sample(self, request: SampleRequest) -> None:
        """Raise Refused if the prompt does not fit."""
        tokens = request.prompt.tokens
        if not tokens:
            raise Refused("the prompt has no tokens")
        if len(tokens) >= self.context:
            raise Refused(f"the prompt has {len(tokens):,} tokens; the model's context has {self.context:,}")
        if max(tokens) >= self.vocabulary:
            raise Refused(f"token {max(tokens)} is not in the vocabulary of {self.vocabulary:,}")
        last = request.prompt_logprobs_last_n
        if last is not None and last >= len(tokens):
            raise Refused("prompt_logprobs_last_n must be smaller than the prompt's length")

    def _model(self, model_id: str) -> LearningModel:
        if (model := self.models.get(model_id)) is None:
            raise Refused("the model was not created or was unloaded")
        return model

    def _check(self, datum: Datum, names: Sequence[str], what: str) -> None:
        length = len(datum.tokens)
        if not 0 < length <= self.context:
            raise Refused(f"{what} has {length:,} tokens; between 1 and {self.context:,} are allowed")
        for name in ("target_tokens", *names):
            if name not in datum.inputs:
                raise Refused(f"{what} lacks {name}")
            if len(datum.inputs[name]) != length:
                raise Refused(f"{what} has {len(datum.inputs[name]):,} values in {name} for {length:,} tokens")
            if not np.isfinite(datum.inputs[name]).all():
                raise Refused(f"{what} has a value in {name} that is not finite")
        if unknown := set(datum.inputs) - {"target_tokens", *names}:
            raise Refused(f"{what} has {', '.join(sorted(unknown))}, which this loss does not use")
        for tokens in (datum.tokens, datum.inputs["target_tokens"]):
            if tokens.min() < 0 or tokens.max() >= self.vocabulary:
                raise Refused(f"{what} has a token that is not in the vocabulary of {self.vocabulary:,}")

    def _target_logprobs(self, batch: Sequence[Datum]) -> list[torch.Tensor]:
        """Log-probabilities of the target tokens, without the padding on the right."""
        width = max(len(datum.tokens) for datum in batch)

        def padded(rows: Sequence[np.ndarray], fill: int) -> torch.Tensor:
            whole = np.full((len(rows), width), fill, np.int64)
            for place, row in enumerate(rows):
                whole[place, : len(row)] = row
            return torch.from_numpy(whole).to(self._device)

        tokens_BT = padded([datum.tokens for datum in batch], self.tokenizer.pad_token_id)
        target_BT = padded([datum.inputs["target_tokens"] for datum in batch], 0)
        real_BT = padded([np.ones(len(datum.tokens), np.int64) for datum in batch], 0)
        logits_BTV = self.model(input_ids=tokens_BT, attention_mask=real_BT, use_cache=False).logits.float()
        chosen_BT = logits_BTV.gather(-1, target_BT[..., None])[..., 0] - logits_BTV.logsumexp(-1)
        return [row[: len(datum.tokens)] for row, datum in zip(chosen_BT, batch, strict=True)]

    def _prompt_logprobs(self, request: SampleRequest) -> list[float | None]:
        tokens = request.prompt.tokens
        scored = request.prompt_logprobs_last_n or len(tokens) - 1
        if len(tokens) == 1:
            return [None]
        datum = Datum(np.asarray(tokens[:-1]), {"target_tokens": np.asarray(tokens[1:])})
        with torch.inference_mode():
            values = self._target_logprobs([datum])[0].tolist()
        return [*([None] * (len(tokens) - scored)), *values[len(values) - scored :]]

    @contextmanager
    def _sampling_from(self, folder: Path | None) -> Iterator[None]:
        if folder is None:
            with self.model.disable_adapter():
                yield
            return
        if folder not in self._attached:
            while len(self._attached) >= ATTACHED:
                self.model.delete_adapter(self._attached.popitem(last=False)[1])
            adapter = self._add(read_shape(folder))
            set_peft_model_state_dict(self.model, load_file(folder / WEIGHTS_FILE), adapter_name=adapter)
            self._attached[folder] = adapter
        self._attached.move_to_end(folder)
        self.model.set_adapter(self._attached[folder], inference_mode=True)
        yield

    def detach(self, folder: Path) -> None:
        """Forget saved weights that are about to be replaced or deleted."""
        if (adapter := self._attached.pop(folder, None)) is not None:
            self.model.delete_adapter(adapter)

    def _add(self, shape: LoraShape) -> str:
        chosen = {"attention": shape.train_attn, "mlp": shape.train_mlp, "unembed": shape.train_unembed}
        layers = [name for kind, is_chosen in chosen.items() if is_chosen for name in self._layers[kind]]
        if not layers:
            raise Refused("this base has no such layers to adapt")
        self._adapters += 1
        adapter = f"client{self._adapters}"
        configuration = LoraConfig(r=shape.rank, lora_alpha=ALPHA, target_modules=layers, task_type="CAUSAL_LM")
        self.model.add_adapter(adapter, configuration)
        return adapter

    def _drop_gradients(self, model: LearningModel) -> None:
        model.optimizer.zero_grad(set_to_none=True)
        model.has_gradients = False


class _Stops:
    """The stop sequences of one sample."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, request: SampleRequest) -> None:
        stop = request.sampling_params.stop
        given = [stop] if isinstance(stop, str) else stop or []
        self.texts = [each for each in given if isinstance(each, str)]
        self.tokens = {each for each in given if isinstance(each, int)}
        self.has_ended = False
        self._tokenizer = tokenizer
        self._tail: list[int] = []
        self._kept = max((len(text.encode()) for text in self.texts), default=0) + _STOP_MARGIN

    def ends(self, token: int) -> bool:
        if self.has_ended:
            return True
        self.has_ended = token in self.tokens
        if self.texts and not self.has_ended:
            self._tail = [*self._tail[1 - self._kept :], token]
            text = self._tokenizer.decode(self._tail, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            self.has_ended = any(stop in text for stop in self.texts)
        return self.has_ended


def read_shape(folder: Path) -> LoraShape:
    try:
        return LoraShape.model_validate_json((folder / SHAPE_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise Refused("these weights do not exist on this server") from error


Loss = Callable[[torch.Tensor, Mapping[str, torch.Tensor], Mapping[str, float]], torch.Tensor]


def _cross_entropy(logprobs: torch.Tensor, given: Mapping[str, torch.Tensor], _: Mapping[str, float]) -> torch.Tensor:
    return -(logprobs * given["weights"]).sum()


def _importance_sampling(
    logprobs: torch.Tensor, given: Mapping[str, torch.Tensor], _: Mapping[str, float]
) -> torch.Tensor:
    return -(_ratio(logprobs, given) * given["advantages"]).sum()


def _ppo(logprobs: torch.Tensor, given: Mapping[str, torch.Tensor], settings: Mapping[str, float]) -> torch.Tensor:
    ratio, advantages = _ratio(logprobs, given), given["advantages"]
    clipped = ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -torch.minimum(ratio * advantages, clipped * advantages).sum()


def _ratio(logprobs: torch.Tensor, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return (logprobs - given["logprobs"]).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


_SAMPLED = ("logprobs", "advantages")
_LOSSES: Mapping[str, tuple[Loss, Sequence[str], Mapping[str, float]]] = {
    "cross_entropy": (_cross_entropy, ("weights",), {}),
    "importance_sampling": (_importance_sampling, _SAMPLED, {}),
    "ppo": (_ppo, _SAMPLED, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
}
"""A loss, its arrays in addition to `target_tokens`, and its settings with their defaults."""


def _layers_of(model: PreTrainedModel) -> dict[str, list[str]]:
    """Full names of the linear layers of attention, of everything else, and of an output that is not the input."""
    output = model.get_output_embeddings()
    layers: dict[str, list[str]] = {"attention": [], "mlp": [], "unembed": []}
    for name, module in model.named_modules():
        base = getattr(module, "base_layer", module)
        if ".base_layer" in name or ".lora_" in name or not isinstance(base, torch.nn.Linear | Conv1D):
            continue
        if module is output:
            if base.weight is not model.get_input_embeddings().weight:
                layers["unembed"].append(name)
        else:
            layers["attention" if "attn" in name or "attention" in name else "mlp"].append(name)
    return layers


def _batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Divide sequences of similar length into batches of at most this number of tokens, or of one sequence."""
    places = sorted(range(len(lengths)), key=lambda place: lengths[place])
    batch: list[int] = []
    for place in places:
        if batch and lengths[place] * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _optimizer_tensors(model: LearningModel) -> dict[str, torch.Tensor]:
    return {
        f"{place}.{name}": value.detach().cpu().contiguous()
        for place, parameter in enumerate(model.parameters)
        for name, value in model.optimizer.state.get(parameter, {}).items()
    }
