"""The Trainer and the collator of transformers train our model."""

import inspect

import pytest
import torch
from datasets import Dataset
from factories import tiny_config
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    set_seed,
)

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.model.modeling_vaswani import EXCLUDED_LOGIT

EOS = 2
NUM_CLASSES = 12
NUM_STEPS = 200
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with the words "4" to "11", and with the ids 0 to 3 for the special tokens."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *map(str, range(4, NUM_CLASSES))]
    words_to_ids = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    words_to_ids.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words_to_ids, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


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
def test_seq2seq_trainer_trains_it(model, tokenizer, copies, tmp_path, label_smoothing_factor):
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


def test_gradient_accumulation_changes_nothing(model, tokenizer, copies, tmp_path):
    assert "num_items_in_batch" in inspect.signature(model.forward).parameters
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    weights = []
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for batch_size, steps in ((8, 1), (2, 4)):
        model.load_state_dict(state)
        settings = {
            "per_device_train_batch_size": batch_size,
            "gradient_accumulation_steps": steps,
            "max_steps": 3,
        }
        settings |= {
            "learning_rate": 0.5,
            "optim": "sgd",
            "max_grad_norm": 0.0,
            "lr_scheduler_type": "constant",
        }
        arguments = Seq2SeqTrainingArguments(str(tmp_path), **settings, **QUIET)
        Trainer(model=model, args=arguments, train_dataset=copies, data_collator=collator).train()
        weights.append([tensor.clone() for tensor in model.state_dict().values()])
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-5)
