"""What several test files share: one thread, and models small enough for slow loops."""

import pytest
import torch

from vaswani_hf import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani_hf.tokenization import save_tokenizers, train_tokenizer
from vaswani_hf.translation import Translator

torch.set_num_threads(1)

COPYING_STEPS = 400

TINY = {
    "vocab_size": 23,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "dropout": 0.0,
}


def _make_config(**fields) -> VaswaniConfig:
    return VaswaniConfig(**TINY | fields)


def _make_model(**fields) -> VaswaniForSeq2SeqLM:
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(_make_config(**fields)).eval()
    with torch.no_grad():
        # Biases of 0 and gains of 1 would hide that they are not used, and small weights that a mask is missing.
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def tiny_config():
    """Make the smallest config that has every part, with these fields changed."""
    return _make_config


@pytest.fixture(scope="session")
def tiny_model():
    """Make the model of such a config, the same at every call, in eval mode."""
    return _make_model


# Among them some that a small vocabulary splits, also in the middle of a character.
COPIED_WORDS = "der Hund läuft über die Straße Mr. 3. Mai weiß größer. eins zwei, drei! ja? nein Öl Łódź 日本".split()


@pytest.fixture(scope="session")
def copier() -> Translator:
    """A translator that gives back what it is given, if that is of a few of the words above."""
    tokenizer = train_tokenizer([" ".join(COPIED_WORDS)] * 2, 320, model_max_length=64)
    shape = {"d_model": 48, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = _make_config(vocab_size=len(tokenizer), label_smoothing=0.0, **shape)
    torch.manual_seed(1)
    model = VaswaniForSeq2SeqLM(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.03, total_iters=COPYING_STEPS)
    for _ in range(COPYING_STEPS):
        choices = torch.randint(len(COPIED_WORDS), (32, int(torch.randint(1, 6, ()))))
        texts = [" ".join(COPIED_WORDS[i] for i in row) for row in choices.tolist()]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return Translator(model.eval(), tokenizer, tokenizer)


@pytest.fixture(scope="session")
def copier_checkpoint(copier, tmp_path_factory) -> str:
    """A folder with that model."""
    folder = tmp_path_factory.mktemp("copier")
    copier.model.save_pretrained(folder)
    save_tokenizers(copier.source_tokenizer, copier.target_tokenizer, folder)
    return str(folder)
