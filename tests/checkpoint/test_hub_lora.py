"""LoRA adapters on a published model: trained by the Trainer, pushed, loaded, merged."""

import shutil

import pytest
import torch
from factories import files_in
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)

from vaswani_hf import VaswaniForSeq2SeqLM

peft = pytest.importorskip("peft", reason="peft is not installed")

TEXT = "der Hund läuft"
# The adapter learns to write this text instead of a copy of `TEXT`.
TARGET = "eins zwei, drei!"


def is_tied(model):
    embeddings = {model.get_input_embeddings().weight, model.model.decoder.embed_tokens.weight}
    return embeddings == {model.lm_head.weight}


def logits(model, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model.eval()(input_ids=ids, decoder_input_ids=ids).logits


def train_adapter(base, tokenizer, folder):
    config = peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules="all-linear", r=8)
    model = peft.get_peft_model(base, config)
    row = {**tokenizer(TEXT), "labels": tokenizer(text_target=TARGET)["input_ids"]}
    trainer = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(
            str(folder),
            max_steps=40,
            learning_rate=2e-2,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=1,
        ),
        train_dataset=[row] * 16,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        processing_class=tokenizer,
    )
    trainer.train()
    return model.eval()


def test_an_adapter_is_trained_pushed_loaded_and_merged(hub, copier_repository, tmp_path):
    published = copier_repository.id
    tokenizer = AutoTokenizer.from_pretrained(published)
    base = AutoModelForSeq2SeqLM.from_pretrained(published)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    adapted = train_adapter(base, tokenizer, tmp_path)
    adapter = f"{published}-adapter"
    adapted.push_to_hub(adapter)
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(hub.repository(adapter).files())
    assert "model.safetensors" not in hub.repository(adapter).files()

    fresh = AutoModelForSeq2SeqLM.from_pretrained(published)
    loaded = peft.PeftModel.from_pretrained(fresh, adapter)
    expected = logits(adapted, tokenizer)
    assert torch.equal(logits(loaded, tokenizer), expected)
    assert not torch.allclose(
        logits(AutoModelForSeq2SeqLM.from_pretrained(published), tokenizer), expected, atol=0.1
    )
    # transformers finds the base model through the config of the adapter.
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(adapter), tokenizer), expected)
    assert pipeline("translation", model=adapter, tokenizer=published)(TEXT) == [{"translation_text": TARGET}]

    merged = loaded.merge_and_unload()
    assert type(merged) is VaswaniForSeq2SeqLM and is_tied(merged)
    torch.testing.assert_close(logits(merged, tokenizer), expected, atol=1e-4, rtol=1e-4)
    # The adapter does not change tied weights.
    assert torch.equal(merged.lm_head.weight, before["lm_head.weight"])
    merged.push_to_hub(f"{published}-merged")
    again = AutoModelForSeq2SeqLM.from_pretrained(f"{published}-merged")
    assert is_tied(again) and torch.equal(logits(again, tokenizer), logits(merged, tokenizer))
    assert pipeline("translation", model=again, tokenizer=tokenizer)(TEXT) == [{"translation_text": TARGET}]


def test_an_adapter_in_the_folder_is_named(hub, repo_id, copier_checkpoint, vaswani, tmp_path):
    base = AutoModelForSeq2SeqLM.from_pretrained(copier_checkpoint)
    config = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM", target_modules="all-linear", r=2, init_lora_weights=False
    )
    adapted = peft.get_peft_model(base, config)
    shutil.copytree(copier_checkpoint, tmp_path / "both")
    for folder in (tmp_path / "both", tmp_path / "alone"):
        adapted.save_pretrained(folder)
        sentence = (
            f"`model` must be a whole model, but '{folder}' holds an adapter of PEFT (adapter_config.json); load the adapter in "
            "Python with `PeftModel.from_pretrained`, "
            "merge it with `merge_and_unload`, and save the merged model in a folder of its own."
        )
        assert vaswani("translate", folder, "--text", TEXT) == (2, "", sentence)
        assert vaswani("export", folder, tmp_path / "out", "--format", "marian") == (2, "", sentence)
        assert vaswani("push", folder, repo_id) == (2, "", sentence)
    hub.create_repository(repo_id).commit(files_in(tmp_path / "both"))
    sentence = sentence.replace(str(folder), repo_id)
    assert vaswani("translate", repo_id, "--text", TEXT) == (2, "", sentence)
    # After the merge that the error message advises, the adapter is an ordinary model.
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(copier_checkpoint).save_pretrained(tmp_path / "merged")
    assert vaswani("translate", tmp_path / "merged", "--text", TEXT)[0] == 0
