"""GGUF: with llama.cpp's converter and the package `gguf` where they are installed, the refusals everywhere.

Proctor's own converter and the conversion of a base need only the package.
"""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from backend.domain.vocabulary import ExportForm
from tests.installation import forget_settings
from tests.models.adapters import TEXTS, logits_of, make_adapter, make_base
from workers.models.build import CHAT_TEMPLATE, END, PAD, ROLES, build_tokenizer
from workers.models.gguf_base import PRE_TOKENIZER, CannotConvert, convert_gguf
from workers.models.load import ModelUnusable, load_folder, read_record
from workers.models.machine import OWN_CONVERTER, find_converter
from workers.training.checkpoints import save_model
from workers.training.exporting.comparison import likeness, random_probes, tolerance_of
from workers.training.exporting.files import read_export, write_export

try:
    from workers.models.gguf_converter import write_gguf
except ImportError:  # the package gguf is an option; tests that need it are skipped
    write_gguf = None  # type: ignore[assignment]

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>/.,?!"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A Llama whose tokenizer llama.cpp knows: bytes and letters, as SentencePiece leaves them."""
    vocabulary = dict.fromkeys(["<unk>", PAD, END, *ROLES, *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS])
    ids = {token: place for place, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token="<unk>",
        additional_special_tokens=list(ROLES),
        padding_side="left",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(fast), intermediate_size=192, initializer_range=0.1, pad_token_id=1, **shape)
        )
    save_model(model, fast, tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def own_base(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A Llama with a byte-level tokenizer, as one that was converted from a GGUF file."""
    pytest.importorskip("gguf")
    tokenizer = build_tokenizer(TEXTS, context=96)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.init_kwargs[PRE_TOKENIZER] = "smollm"
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        configuration = LlamaConfig(
            vocab_size=len(tokenizer),
            intermediate_size=192,
            initializer_range=0.1,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=request.param,
            max_position_embeddings=96,
            **shape,
        )
        model = LlamaForCausalLM(configuration)
    save_model(model, tokenizer, tmp_path / "own")
    return tmp_path / "own"


def test_a_file_of_proctor_s_own_converter_becomes_the_same_model_again(own_base: Path, tmp_path: Path) -> None:
    write_gguf(own_base, tmp_path / "model.gguf", "f32")
    convert_gguf(tmp_path / "model.gguf", tmp_path / "again", torch.float32)
    model, tokenizer = load_folder(tmp_path / "again")
    known, known_tokenizer = load_folder(own_base)
    assert torch.allclose(logits_of(model), logits_of(known), atol=1e-5)
    assert model.config.tie_word_embeddings == known.config.tie_word_embeddings
    assert tokenizer.get_vocab() == known_tokenizer.get_vocab()
    assert tokenizer.chat_template == known_tokenizer.chat_template
    assert tokenizer.init_kwargs[PRE_TOKENIZER] == "smollm"
    for text in ("Say <move>4</move>.", "It's 1,234 + 56 = 1290.\n\n x", "<|user|>é"):
        assert tokenizer.encode(text) == known_tokenizer.encode(text)


def test_an_adapter_of_a_gguf_file_is_pinned_and_exported(
    own_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_DATA", str(tmp_path / "data"))
    forget_settings()
    file = tmp_path / "model.gguf"
    write_gguf(own_base, file, "f32")
    original = make_adapter(tmp_path / "adapter", file)
    assert read_record(original).base == str(file)
    assert len(list((tmp_path / "data" / "models").iterdir())) == 1, "converted once, and no scratch folder stays"
    write_export(ExportForm.GGUF, original, tmp_path / "made", gguf_type="f32")
    exported, _ = read_export(tmp_path / "made", ExportForm.GGUF, original)
    predictions = likeness(exported, load_folder(original)[0], random_probes(271, count=4))
    assert predictions.problem(tolerance_of("bfloat16")) is None
    file.unlink()
    with pytest.raises(ModelUnusable, match=r"there is no file model\.gguf on this worker"):
        load_folder(original)


def test_a_file_without_a_chat_template_is_refused(own_base: Path, tmp_path: Path) -> None:
    (own_base / "chat_template.jinja").unlink()
    write_gguf(own_base, tmp_path / "model.gguf", "f32")
    with pytest.raises(CannotConvert, match="has no chat template: choose an instruct model"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "again", torch.float32)


def test_a_base_of_another_kind_needs_llama_cpp_s_converter(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(ValueError, match="did not come from a GGUF file"):
        write_gguf(base, tmp_path / "model.gguf", "f32")


def need_converter() -> None:
    if find_converter() in {None, OWN_CONVERTER}:
        pytest.skip("llama.cpp's convert_hf_to_gguf.py is not installed")
    pytest.importorskip("gguf")


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_whole_weights_become_a_file_that_is_read_back(precision: str, base: Path, tmp_path: Path) -> None:
    need_converter()
    written = write_export(ExportForm.GGUF, base, tmp_path / "made", gguf_type=precision)
    assert written.dtype == precision
    exported, tokenizer = read_export(tmp_path / "made", ExportForm.GGUF, base)
    original, _ = load_folder(base)
    allowed = tolerance_of("float32" if precision == "f32" else "float16")
    assert likeness(exported, original, random_probes(300, count=4)).problem(allowed) is None
    assert tokenizer.chat_template
    assert sorted(path.suffix for path in (tmp_path / "made").iterdir()) == [
        ".gguf",
        ".jinja",
        ".json",
        ".json",
        ".json",
        ".json",
    ]


def test_an_adapter_is_merged_first(base: Path, tmp_path: Path) -> None:
    need_converter()
    original = make_adapter(tmp_path / "adapter", base)
    write_export(ExportForm.GGUF, original, tmp_path / "made", gguf_type="f32")
    exported, _ = read_export(tmp_path / "made", ExportForm.GGUF, original)
    assert torch.allclose(logits_of(exported), logits_of(load_folder(original)[0]), atol=1e-3)


def test_a_tokenizer_that_llama_cpp_does_not_know_is_refused_in_its_words(tmp_path: Path) -> None:
    need_converter()
    base = make_base(tmp_path / "base", dtype=torch.float32)
    with pytest.raises(ModelUnusable, match="pre-tokenizer was not recognized"):
        write_export(ExportForm.GGUF, base, tmp_path / "made")


def test_without_the_converter_it_shows_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.training.exporting.files.find_converter", lambda: None)
    base = make_base(tmp_path / "base")
    with pytest.raises(ModelUnusable, match=r"no convert_hf_to_gguf\.py"):
        write_export(ExportForm.GGUF, base, tmp_path / "made")


def test_a_converter_that_writes_nonsense_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "convert_hf_to_gguf.py"
    program.write_text("import sys; open(sys.argv[sys.argv.index('--outfile') + 1], 'wb').write(b'GGUF nonsense')")
    monkeypatch.setattr("workers.training.exporting.files.find_converter", lambda: program)
    base = make_base(tmp_path / "base")
    write_export(ExportForm.GGUF, base, tmp_path / "made")
    with pytest.raises(ModelUnusable, match="cannot be read back"):
        read_export(tmp_path / "made", ExportForm.GGUF, base)
