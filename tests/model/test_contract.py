"""transformers' own suite of contracts (tests/test_modeling_common.py of its source distribution) on all our
models.

The suite is not part of the installed package: `make contract` downloads the source distribution of the
installed version and names its folder in TRANSFORMERS_SOURCE. The suite does not contain the tests of
`generate`; other tests compare our search with the search of transformers.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from vaswani_hf import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniDecoderModel,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSeq2SeqLM,
    VaswaniModel,
)

SOURCE = Path(os.environ.get("TRANSFORMERS_SOURCE", "none"), "tests", "test_modeling_common.py")
if not SOURCE.is_file():
    pytest.skip(
        "TRANSFORMERS_SOURCE names no source distribution; run `make contract`.", allow_module_level=True
    )

# Modules that the suite imports and the source distribution lacks.
MISSING = {
    "exporters/test_export.py": "class ExportTesterMixin: pass",
    "generation/test_utils.py": "class GenerationTesterMixin: pass",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}",
}
# Tests of the loss, which the models without output projection do not have.
OF_HEADS = [
    "test_training",
    *(
        f"test_training_gradient_checkpointing{end}"
        for end in ("", "_use_reentrant_false", "_use_reentrant_true")
    ),
]
PAD = 5


def _suite():
    folder = Path(os.environ["TRANSFORMERS_SOURCE"]).parent / "contract"
    package = folder / "transformers_tests"
    if not package.is_dir():
        shutil.copytree(SOURCE.parent, package)
        for name, text in MISSING.items():
            (package / name).parent.mkdir(exist_ok=True)
            (package / name).parent.joinpath("__init__.py").touch()
            (package / name).write_text(text + "\n", encoding="utf-8")
        (package / "__init__.py").touch()
    sys.path.insert(0, str(folder))
    from transformers_tests import test_configuration_common, test_modeling_common

    return test_modeling_common.ModelTesterMixin, test_configuration_common.ConfigTester


ModelTesterMixin, ConfigTester = _suite()


class _Tester:
    batch_size, seq_length, is_training = 3, 7, True
    hidden_size, num_hidden_layers, num_attention_heads, vocab_size = 32, 2, 4, 99

    def __init__(self, config_class):
        self.config_class = config_class

    def get_config(self):
        stacks = {
            f"{stack}_{key}": size for stack in ("encoder", "decoder") for key, size in self.sizes.items()
        }
        return self.config_class(
            vocab_size=99, d_model=32, max_position_embeddings=64, pad_token_id=PAD, **stacks
        )

    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 40}  # noqa: RUF012

    def prepare_config_and_inputs_for_common(self):
        ids = torch.randint(PAD + 1, 84, (self.batch_size, self.seq_length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.config_class is VaswaniConfig:
            inputs |= {"decoder_input_ids": ids.flip(0), "decoder_attention_mask": torch.ones_like(ids)}
        return self.get_config(), inputs


class _Contract(ModelTesterMixin):
    has_attentions = True
    config_class = None

    def setUp(self):
        self.model_tester = _Tester(self.config_class)
        names = ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
        self.config_tester = ConfigTester(
            self, config_class=self.config_class, d_model=32, common_properties=names
        )

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = dict(inputs_dict)
        if return_labels and model_class.__name__.startswith("VaswaniFor"):
            inputs["labels"] = inputs.get("decoder_input_ids", inputs["input_ids"])
        return inputs

    def test_config(self):
        self.config_tester.run_common_tests()

    def test_generation_tester_mixin_inheritance(self):
        self.skipTest("The suite of `generate` is not in the source distribution.")


def _for_heads(name):
    def test(self, *args):
        self.all_model_classes = self.all_model_classes[1:]
        getattr(ModelTesterMixin, name)(self, *args)

    return test


for _name in OF_HEADS:
    setattr(_Contract, _name, _for_heads(_name))


def _case(config_class, *model_classes, is_encoder_decoder=False):
    import unittest

    generating = tuple(one for one in model_classes if one.can_generate())
    fields = {
        "config_class": config_class,
        "all_model_classes": model_classes,
        "all_generative_model_classes": generating,
        "is_encoder_decoder": is_encoder_decoder,
        "__module__": __name__,
    }
    return type(f"Test{model_classes[1].__name__}", (_Contract, unittest.TestCase), fields)


TestCausal = _case(VaswaniDecoderConfig, VaswaniDecoderModel, VaswaniForCausalLM)
TestMasked = _case(VaswaniEncoderConfig, VaswaniEncoderModel, VaswaniForMaskedLM)
TestBoth = _case(VaswaniConfig, VaswaniModel, VaswaniForSeq2SeqLM, is_encoder_decoder=True)
