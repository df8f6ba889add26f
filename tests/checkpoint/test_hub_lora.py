"""LoRA adapters on a published model: trained, pushed, loaded, merged."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_hf import VaswaniForSeq2SeqLM

peft = pytest.importorskip("peft", reason="peft is not installed")

TEXT = "der Hund läuft"
# The adapter learns to write this text instead of a copy of `TEXT`.
TARGET = "eins zwei, drei!"


def logits(model, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model.eval()(input_ids=ids, decoder_input_ids=ids).logits


def train_adapter(base, tokenizer):
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules="all-linear", r=8)
    model = peft.get_peft_model(base, config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    inputs = tokenizer([TEXT], return_tensors="pt")
    labels = tokenizer(text_target=[TARGET], return_tensors="pt")["input_ids"]
    for _ in range(40):
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def test_an_adapter_is_trained_pushed_loaded_and_merged(hub, copier_repository):
    published = copier_repository.id
    tokenizer = AutoTokenizer.from_pretrained(published)
    base = AutoModelForSeq2SeqLM.from_pretrained(published)
    before = base.lm_head.weight.clone()
    adapted = train_adapter(base, tokenizer)
    adapter = f"{published}-adapter"
    adapted.push_to_hub(adapter)
    assert "model.safetensors" not in hub.repository(adapter).files()

    loaded = peft.PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(published), adapter)
    expected = logits(adapted, tokenizer)
    assert torch.equal(logits(loaded, tokenizer), expected)
    # transformers finds the base model through the config of the adapter.
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(adapter), tokenizer), expected)
    assert pipeline("translation", model=adapter, tokenizer=published)(TEXT) == [{"translation_text": TARGET}]

    merged = loaded.merge_and_unload()
    assert type(merged) is VaswaniForSeq2SeqLM
    torch.testing.assert_close(logits(merged, tokenizer), expected, atol=1e-4, rtol=1e-4)
    # The adapter does not change tied weights.
    assert (
        merged.lm_head.weight
        is merged.model.decoder.embed_tokens.weight
        is merged.get_input_embeddings().weight
    )
    assert torch.equal(merged.lm_head.weight, before)
