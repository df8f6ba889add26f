"""The Trainer and the collator of transformers train our model."""

import pytest
import torch
from datasets import Dataset
from factories import tiny_config, tiny_tokenizer
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.model.modeling_vaswani import EXCLUDED_LOGIT

EOS = 2
NUM_CLASSES = 12
NUM_STEPS = 200
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}


@pytest.fixture(scope="module")
def copies() -> Dataset:
    """Sentences of 2 to 5 tokens, for a model that learns to copy."""
    generator = torch.Generator().manual_seed(0)

    def sentence() -> list[int]:
        length = int(torch.randint(1, 5, (), generator=generator))
        return [*torch.randint(4, NUM_CLASSES, (length,), generator=generator).tolist(), EOS]

    return Dataset.from_list(
        [{"input_ids": ids, "labels": ids} for ids in (sentence() for _ in range(32 * NUM_STEPS))]
    )


@pytest.fixture
def model() -> VaswaniForSeq2SeqLM:
    set_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64}
    return VaswaniForSeq2SeqLM(tiny_config(vocab_size=NUM_CLASSES, **sizes))


def share_copied(model: VaswaniForSeq2SeqLM, copies: Dataset, collator) -> float:
    batch = collator([copies[index] for index in range(100)])
    model.eval()
    sources = {name: batch[name] for name in ("input_ids", "attention_mask")}
    sequences = model.generate(**sources, max_new_tokens=8, num_beams=2)
    hypotheses = [[token for token in row.tolist() if token > EOS] for row in sequences]
    return sum(found == copies[index]["labels"][:-1] for index, found in enumerate(hypotheses)) / 100


@pytest.mark.parametrize("label_smoothing_factor", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_seq2seq_trainer_trains_it(model, copies, tmp_path, label_smoothing_factor):
    # The model has classes for the special tokens, and for a few other tokens of this tokenizer.
    tokenizer = tiny_tokenizer()
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    settings = {
        "label_smoothing_factor": label_smoothing_factor,
        "learning_rate": 5e-3,
        "max_steps": NUM_STEPS,
    }
    settings |= {"per_device_train_batch_size": 32, "per_device_eval_batch_size": 50}
    settings |= {"predict_with_generate": True, "generation_max_length": 8}
    arguments = Seq2SeqTrainingArguments(str(tmp_path), **settings, **QUIET)
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=copies,
        eval_dataset=copies.select(range(100)),
        data_collator=collator,
        processing_class=tokenizer,
    )
    trainer.train()
    assert share_copied(model, copies, collator) > 0.9
    metrics = trainer.evaluate()
    # The Trainer also smooths the loss of the evaluation, which includes the padding class.
    assert metrics["eval_loss"] < label_smoothing_factor / NUM_CLASSES * -EXCLUDED_LOGIT + 1
    predictions = trainer.predict(copies.select(range(100))).predictions
    assert [row[0] for row in predictions.tolist()] == [0] * 100
