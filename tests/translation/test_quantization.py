import copy
import subprocess
import sys

import pytest
import torch
from sentences import refused
from torch import nn
from transformers import TorchAoConfig

from vaswani_hf import VaswaniForSeq2SeqLM
from vaswani_hf.model.decoding_vaswani import TreeAttentionDecoder
from vaswani_hf.translation import Translator, quantization
from vaswani_hf.translation.quantization import Int8Weight, quantize

pytest.importorskip("torchao")

TEXTS = ["eins nein", "", "der Hund", "ja? nein", "größer.", "die Straße", "nein eins ja?", "zwei,"]
# On x86 processors without VNNI instructions, `torch._int_mm` adds two products in a 16-bit integer. The
# package does not use torchao's products on x86 processors.
LARGEST = torch.full((16, 16), 127, dtype=torch.int8)
overflows_in_torchao = not (torch._int_mm(LARGEST, LARGEST) == 16 * 127 * 127).all()
without_overflow = pytest.mark.skipif(
    overflows_in_torchao, reason="torch._int_mm overflows on this processor"
)
# The conditions of `quantization._kernel`.
needs_onednn = pytest.mark.skipif(quantization._kernel() is None, reason="needs x86 and oneDNN")
has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines and hasattr(torch, "quantize_per_channel")
needs_fbgemm = pytest.mark.skipif(not has_fbgemm, reason="needs FBGEMM")
FBGEMM = pytest.param(quantization._with_fbgemm, marks=needs_fbgemm)
ONEDNN = pytest.param(quantization._with_onednn, marks=needs_onednn)
KERNELS = [FBGEMM, ONEDNN, pytest.param(None, marks=without_overflow)]


def named(kernel) -> str:
    return "torchao" if kernel is None else kernel.__name__


@pytest.fixture(params=KERNELS, ids=named)
def kernel(request, monkeypatch):
    monkeypatch.setattr(quantization, "_kernel", lambda: request.param)
    return request.param


@pytest.fixture(scope="module")
def in_int8(copier_checkpoint) -> Translator:
    return Translator.from_pretrained(copier_checkpoint, quantization="int8", ensemble=[copier_checkpoint])


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_multiplies_nearly_as_in_float32(kernel, bias):
    torch.manual_seed(0)
    layer = nn.Linear(96, 40, bias=bias)
    # The rows have very different sizes, and one row is zero.
    states = torch.randn(5, 3, 96) * torch.tensor([1e-3, 1.0, 1e3]).view(1, 3, 1)
    states[2, 1] = 0
    with torch.inference_mode():
        expected = layer(states)
        quantize(nn.Sequential(layer))
        found = layer(states)
    assert type(layer) is nn.Linear and found.shape == expected.shape and found.dtype == torch.float32
    for number in range(3):
        assert relative_error(found[:, number], expected[:, number]) < 0.03
    if not bias:
        assert found[2, 1].abs().max() == 0


def test_a_layer_with_one_input_stays_in_float32():
    layer = nn.Linear(1, 8)
    expected = layer(torch.ones(2, 1))
    assert torch.equal(quantize(nn.Sequential(layer))(torch.ones(2, 1)), expected)


def _with_16_bit_sums(weight, scales):
    """Multiply as a processor without VNNI instructions: add two products in a 16-bit integer that
    saturates.
    """

    def multiply(rows):
        products = ((rows * 127).round() + 128)[:, None] * weight  # [R, O, I]
        pairs = products.unflatten(2, (-1, 2)).sum(dim=3).clamp(-(2**15), 2**15 - 1)
        sums = pairs.sum(dim=2) - 128 * weight.sum(dim=1)
        return sums * scales / 127

    return multiply


@pytest.mark.parametrize("kernel", [*KERNELS, _with_16_bit_sums], ids=named, indirect=True)
def test_the_largest_sums_do_not_overflow(kernel):
    layer = nn.Linear(512, 8, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    quantize(nn.Sequential(layer))
    for states in (torch.ones(2, 512), -torch.ones(2, 512)):
        expected = states.sum(dim=1, keepdim=True).expand(2, 8)
        torch.testing.assert_close(layer(states), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("kernel", KERNELS[:2], ids=named, indirect=True)
def test_a_row_does_not_depend_on_the_others(kernel):
    torch.manual_seed(0)
    layer, states = nn.Linear(64, 32), torch.randn(9, 64)
    quantize(nn.Sequential(layer))
    states[4] *= 100
    whole = layer(states)
    for row in range(9):
        assert torch.equal(layer(states[row : row + 1])[0], whole[row])


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        pytest.param(
            {"architecture": "x86_64", "avx2": True},
            quantization._with_fbgemm,
            marks=[needs_fbgemm, needs_onednn],
        ),
        pytest.param(
            {"architecture": "x86_64", "amx_int8": True}, quantization._with_onednn, marks=needs_onednn
        ),
        ({"architecture": "aarch64"}, None),
    ],
)
def test_the_kernel_is_that_of_the_processor(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert quantization._kernel() is expected


def test_a_quantized_model_translates_on_the_fast_way(in_int8, monkeypatch):
    steps = []
    step = TreeAttentionDecoder.step

    def watched(self, sequences, parents):
        steps.append((self.is_direct, len(self.steps), self.encoder_states.dtype))
        return step(self, sequences, parents)

    monkeypatch.setattr(TreeAttentionDecoder, "step", watched)
    assert list(in_int8.translate(TEXTS)) == TEXTS
    assert steps and set(steps) == {(True, 1, torch.float32)}
    for model in (in_int8.model, *in_int8.backend.ensemble):
        layers = [module for module in model.modules() if type(module) is nn.Linear]
        assert len(layers) == 4 + 2 + 8 + 2 + 1
        assert all(isinstance(layer.weight, Int8Weight) for layer in layers)
        # The tied embedding stays in float32.
        assert type(model.model.shared.weight) is nn.Parameter
        assert model.model.decoder.embed_tokens.weight is model.model.shared.weight


def test_a_quantized_model_is_neither_saved_nor_moved_nor_trained(in_int8, tmp_path):
    model = in_int8.model
    message = "An int8 weight can only be used in a linear layer, but .* is called on the weight; load the model without "
    labels = torch.tensor([[5, 6, 2]])
    model.train()
    try:
        for use in (
            lambda: model.save_pretrained(tmp_path / "saved"),
            lambda: model.lm_head.to(torch.bfloat16),
            lambda: copy.deepcopy(model),
            lambda: model.state_dict(),
            lambda: model(input_ids=labels, labels=labels).loss.backward(),
        ):
            with pytest.raises(ValueError, match=message):
                use()
    finally:
        model.eval()
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quantization": "int4"}, "`quantization` must be \"int8\", but is 'int4'."),
        (
            {"quantization": "int8", "dtype": "auto"},
            "`quantization` int8 needs `dtype` float32 for all other operations, but `dtype` is auto; leave `dtype` out.",
        ),
        (
            {"quantization": "int8", "device": "meta"},
            "`quantization` int8 is for the CPU, but `device` is meta; use `dtype` bfloat16 on this device.",
        ),
    ],
)
def test_what_int8_is_not_for_is_refused(options, sentence):
    with refused(sentence):
        Translator.from_pretrained("not loaded yet", **options)


def test_without_torchao_one_sentence_says_what_brings_it(monkeypatch, vaswani):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    words = ["translate", "not loaded yet", "--quantization", "int8", "--text", "eins"]
    code, _, sentence = vaswani(*words)
    message = "`quantization` int8 needs torchao; install it with `pip install 'torchao>=0.18'`."
    assert (code, sentence) == (2, message)
    code, _, sentence = vaswani(*words, "--engine", "ctranslate2")
    assert code == 2 and sentence.startswith(
        "`quantization` must be left out with the engine ctranslate2; `vaswani"
    )


# Python runs these lines in a fresh process. The program writes a marker to stderr before its second part.
IN_A_FRESH_PROCESS = r"""
import sys
import warnings
warnings.simplefilter("default")
warnings.filterwarnings("always", module="site-packages")
from transformers.utils.logging import disable_progress_bar
import vaswani_hf
import vaswani_hf.training.run
from vaswani_hf.translation import Translator

disable_progress_bar()
folder = sys.argv[1]
assert list(Translator.from_pretrained(folder, "cpu", dtype="float32").translate(["eins"])) == ["eins"]
assert "torchao" not in sys.modules
Translator.from_pretrained(folder, quantization="int8")
assert "torchao" in sys.modules
# Stand-ins for modules that are compiled when they are imported.
with warnings.catch_warnings(record=True) as caught:
    for path in ("site-packages/torchao/quantization/api.py", "site-packages/other.py"):
        compile(r"'\.'", path, "exec")
print([warning.filename for warning in caught])
print("The pipeline follows.", file=sys.stderr)
from transformers import pipeline
translator = pipeline("translation", model=folder, device="cpu")
translator("eins")
translator(["eins", "zwei"], batch_size=2, num_beams=2, max_new_tokens=20)
"""


def test_torchao_is_imported_for_int8_only_and_ordinary_use_shows_nothing(copier_checkpoint, fresh_python):
    command = [fresh_python, "-c", IN_A_FRESH_PROCESS, copier_checkpoint]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "['site-packages/other.py']\n"), done.stderr
    # transformers itself uses torch.jit. The source line of a warning follows the warning, indented.
    lines = done.stderr.splitlines()
    foreign = [
        number for number, line in enumerate(lines) if "torch.jit" in line or "register_constant" in line
    ]
    own = [line for number, line in enumerate(lines) if number not in foreign and number - 1 not in foreign]
    assert own == ["The pipeline follows."], done.stderr


def test_transformers_quantizes_and_saves_by_torchao_as_without_this_package(copier_checkpoint, tmp_path):
    from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig

    config = TorchAoConfig(Int8WeightOnlyConfig())
    model = VaswaniForSeq2SeqLM.from_pretrained(copier_checkpoint, quantization_config=config)
    model.save_pretrained(tmp_path)
    loaded = VaswaniForSeq2SeqLM.from_pretrained(tmp_path)
    weights = [one.model.encoder.layers[0].fc1.weight for one in (model, loaded)]
    assert all(isinstance(weight, Int8Tensor) for weight in weights)
    assert torch.equal(*(weight.dequantize() for weight in weights))
    source = torch.tensor([[5, 6, 2]])
    found = [model.generate(source, num_beams=2, use_cache=use_cache) for use_cache in (True, False)]
    assert torch.equal(*found)
