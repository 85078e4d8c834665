"""Settings of an adapter, and what it can be combined with."""

import pytest
from pydantic import ValidationError

from backend.domain.checkpoints.exports import ExportOptions, default_form, offered_forms
from backend.domain.training.adapter import AdapterChoice, AdapterKind, AdapterRecord, public_name
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import ExportForm

LORA = {"base": "Org/Base", "dtype": "bfloat16", "rank": 8, "alpha": 16}
QLORA = {**LORA, "quantisation": {"is_double": True}}


def test_stored_runs_without_an_adapter_are_trained_whole():
    assert TrainingConfiguration.of_run({"recipe": "sft"}).adapter.kind is AdapterKind.FULL


@pytest.mark.parametrize("targets", ["lm_head", "q_proj,lm_head", "model.lm_head", " , "])
def test_an_adapter_on_the_output_is_refused(targets: str):
    with pytest.raises(ValidationError):
        AdapterChoice(targets=targets)


def test_layers_are_names_or_all():
    assert AdapterChoice().layers == "all-linear"
    assert AdapterChoice(targets=" q_proj, v_proj ").layers == ["q_proj", "v_proj"]


def test_a_record_shows_how_its_base_was_held():
    assert AdapterRecord.model_validate(LORA).kind is AdapterKind.LORA
    assert AdapterRecord.model_validate(QLORA).kind is AdapterKind.QLORA


@pytest.mark.parametrize(
    ("base", "shown"), [("Org/Base", "Org/Base"), ("/home/ada/models/base/", "base"), ("~/base", "base")]
)
def test_no_one_else_reads_the_path_of_a_base(base: str, shown: str):
    assert public_name(base) == shown


@pytest.mark.parametrize(
    ("adapter", "engines", "forms"),
    [
        (None, (), {"full"}),
        (None, ("llama.cpp",), {"full", "gguf"}),
        (LORA, (), {"adapter", "merged"}),
        (QLORA, (), set()),
        (QLORA, ("bitsandbytes",), {"adapter", "merged", "merged_dequantised"}),
    ],
)
def test_only_forms_that_make_sense_are_offered(adapter: dict[str, object] | None, engines: tuple[str, ...], forms):
    offered = offered_forms(adapter, engines)
    assert {each.form for each in offered if each.refusal is None} == forms
    assert [each.form for each in offered] == list(ExportForm)
    assert [each.form for each in offered if each.is_default] == [default_form(adapter)]


def test_nothing_is_offered_of_what_was_pruned():
    assert {each.refusal for each in offered_forms(None, (), is_pruned=True)} == {"Its weights were pruned."}


@pytest.mark.parametrize("licence", ["MIT OR GPL", "x\nlicense: mit", "a" * 81])
def test_a_licence_is_one_word(licence: str):
    with pytest.raises(ValidationError):
        ExportOptions(licence=licence)
