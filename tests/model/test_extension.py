"""Classes of users: config fields, attention functions, position encodings, and their files in
checkpoints.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from factories import tiny_model
from sentences import rows
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_hf import (
    VaswaniAttention,
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniForSeq2SeqLM,
    register_attention,
    register_position_encoding,
)
from vaswani_hf.model.extension_vaswani import ATTENTIONS, POSITION_ENCODINGS, source_for_checkpoint

IDS = torch.tensor([[5, 9, 4, 7, 2], [8, 3, 2, 1, 1]])
CODE = '''"""Cosine attention with a learned temperature, and a ramp of positions."""
# A form feed is no line break in Python: \f
import torch
from torch import nn
from vaswani_hf import (
    VaswaniAttention as Attention,
    VaswaniConfig, VaswaniForSeq2SeqLM, register_attention, register_position_encoding,
)  # all in one statement


class CosineAttention(Attention):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.temperature = nn.Parameter(torch.full((1,), 3.0))

    def scores(self, query, key):
        query = nn.functional.normalize(query, dim=-1)
        return self.temperature * query @ nn.functional.normalize(key, dim=-1).transpose(2, 3)


class Ramp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("table", torch.arange(200.0)[:, None].expand(200, config.d_model) / 40)

    def forward(self, position_ids):
        return self.table[position_ids]


class MyConfig(VaswaniConfig):
    model_type = "mine"
    my_field: int = 3


class MyModel(VaswaniForSeq2SeqLM):
    config_class = MyConfig


register_attention("cosine", CosineAttention)
register_position_encoding("ramp_of_user", Ramp)
'''
REMOTE = """
import sys
# Python raises ModuleNotFoundError for a module that is None.
sys.modules["vaswani_hf"] = None
import json, torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
name, own, ids = sys.argv[1], sys.argv[2], torch.tensor(json.loads(sys.argv[3]))
trust = {"trust_remote_code": True}
model = AutoModelForSeq2SeqLM.from_pretrained(name, **trust).eval()
AutoModel.from_pretrained(name, **trust)
model.save_pretrained(f"{name}/again")
again = AutoModelForSeq2SeqLM.from_pretrained(f"{name}/again", **trust)
mine = AutoModelForSeq2SeqLM.from_pretrained(own, **trust)
print(json.dumps({
    "logits": [one.eval()(ids, decoder_input_ids=ids).logits.tolist() for one in (model, again)],
    "generated": model.generate(ids, num_beams=3, max_new_tokens=6).tolist(),
    "mine": [AutoConfig.from_pretrained(own, **trust).my_field, type(mine).__name__],
}))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The module of a user; the registries forget its classes after the test."""
    for registry in (ATTENTIONS, POSITION_ENCODINGS):
        monkeypatch.setattr(registry, "classes", dict(registry.classes))
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "cosine_of_user.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path / "user"))
    monkeypatch.delitem(sys.modules, "cosine_of_user", raising=False)
    return importlib.import_module("cosine_of_user")


USER_FIELDS = {"attention_score": "cosine", "position_embedding": "ramp_of_user"}


class MyConfig(VaswaniConfig):
    model_type = "mine"
    my_field: int = 3
    rates: tuple[float, ...] = (0.5,)
    name: str | None = None
    plain = "default"


class MyDeeperConfig(MyConfig):
    model_type = "mine_deeper"
    depth: float = 0.5


class MyClassicConfig(VaswaniConfig):
    model_type = "mine_classic"

    def __init__(self, factor=2.0, **kwargs):
        self.factor = factor
        super().__init__(**kwargs)


class MyDecoderConfig(VaswaniDecoderConfig):
    model_type = "mine_decoder"
    my_field: int = 3


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (MyConfig, {"my_field": 5, "rates": (1.0, 2), "name": "x", "plain": "other"}),
        (MyDeeperConfig, {"my_field": 5, "depth": 1, "plain": 7}),
        (MyClassicConfig, {"factor": 3.5}),
        (MyDecoderConfig, {"my_field": 5}),
    ],
)
def test_a_config_of_a_user_keeps_its_fields(tmp_path, caplog, kind, fields):
    kind(d_model=64, **fields).save_pretrained(tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    assert type(loaded) is kind and loaded.d_model == 64
    assert {name: getattr(loaded, name) for name in fields} == fields
    assert "The entry is ignored" not in caplog.text
    AutoConfig.register(kind.model_type, kind, exist_ok=True)
    assert type(AutoConfig.from_pretrained(tmp_path)) is kind
    kind().save_pretrained(tmp_path)
    defaults = kind.from_pretrained(tmp_path)
    assert all(getattr(defaults, name) == getattr(kind(), name) for name in fields)
    with pytest.raises(ValueError, match=f"is no field of {kind.__name__}; the nearest field is"):
        kind(unknown_field_of_nobody=1)


@pytest.mark.parametrize("value", ["5", 2.5, True, None])
def test_the_type_of_a_users_field_is_checked(value):
    config = MyConfig()
    message = f"^`my_field` must be of the type int, but is {value!r}.$"
    with pytest.raises(ValueError, match=message):
        MyConfig(my_field=value)
    with pytest.raises(ValueError, match=message):
        config.my_field = value
    assert MyDeeperConfig(depth=2).depth == 2


class Plain(VaswaniAttention):
    """An attention for registrations that fail."""


NO_SUBCLASS = "^The class of 'plain' must be a subclass of VaswaniAttention, but is"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("additive", Plain, "^`name` must be new, but 'additive' is built in; choose another name.$"),
        ("nearby!", Plain, "^`name` must be made of letters"),
        (3, Plain, "^`name` must be made of letters"),
        ("plain", nn.Linear, NO_SUBCLASS),
        ("plain", Plain.scores, NO_SUBCLASS),
        ("plain", VaswaniAttention, NO_SUBCLASS),
        ("cosine", Plain, "'cosine' is registered for CosineAttention of the module cosine_of_user; choose"),
    ],
)
def test_a_registration_that_cannot_be_is_refused(module, name, kind, message):
    with pytest.raises(ValueError, match=message):
        register_attention(name, kind)
    with pytest.raises(ValueError, match="'none' is built in"):
        register_position_encoding("none", nn.Linear)


def test_a_class_may_be_registered_again_and_a_plain_subclass_scales_scores_like_the_paper(module):
    importlib.reload(module)
    assert ATTENTIONS.classes["cosine"] is module.CosineAttention
    register_attention("plain", Plain)
    expected = tiny_model()(IDS, decoder_input_ids=IDS).logits
    plain = tiny_model(attention_score="plain")
    assert type(plain.model.encoder.layers[0].self_attn) is Plain
    assert torch.equal(plain(IDS, decoder_input_ids=IDS).logits, expected)


def test_a_kernel_that_cannot_compute_the_scores_or_the_mask_is_refused(module):
    class Masked(VaswaniAttention):
        def local_mask(self, query_positions, key_positions):
            return query_positions - key_positions > -3

    register_attention("masked", Masked)
    with pytest.raises(
        ValueError, match='^`attn_implementation` must be "eager" for the attention score "cosine"'
    ):
        tiny_model(attention_score="cosine", attn_implementation="sdpa")
    with pytest.raises(ValueError, match='for the `local_mask` of the attention score "masked", but is'):
        tiny_model(attention_score="masked", attn_implementation="flash_attention_2")
    assert tiny_model(attention_score="masked").config._attn_implementation == "sdpa"


def test_an_unregistered_name_never_loads_as_scaled_dot_product(module, tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint(**USER_FIELDS)
    expected = VaswaniForSeq2SeqLM.from_pretrained(folder)(IDS, decoder_input_ids=IDS).logits
    # The code of the checkpoint does not run without `trust_remote_code`.
    (folder / "cosine_of_user.py").write_text("raise SystemExit")
    ATTENTIONS.classes.pop("cosine")
    message = (
        "^`attention_score` must be .* but is 'cosine'; to use an added name, import its Python file, or name"
    )
    for load in (VaswaniForSeq2SeqLM, AutoModelForSeq2SeqLM, AutoConfig):
        with pytest.raises(ValueError, match=message):
            load.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)("Hund")["input_ids"]
    importlib.reload(module)
    assert torch.equal(
        VaswaniForSeq2SeqLM.from_pretrained(folder)(IDS, decoder_input_ids=IDS).logits, expected
    )


def test_a_checkpoint_has_the_users_file_and_loads_without_the_package(
    module, tiny_checkpoint, tmp_path, fresh_python
):
    folder = tiny_checkpoint(**USER_FIELDS)
    own = tmp_path / "own"
    config = module.MyConfig(vocab_size=30, d_model=16, my_field=7, **USER_FIELDS)
    module.MyModel(config).save_pretrained(own)
    model = VaswaniForSeq2SeqLM.from_pretrained(folder)
    copied = (folder / "cosine_of_user.py").read_text()
    # The copy also runs outside of a checkpoint.
    exec(compile(copied, "copy", "exec"), {"__name__": "cosine_of_user"})
    assert json.loads((folder / "config.json").read_text())["auto_map"]["AutoConfig"] == (
        "registered_vaswani.VaswaniConfig"
    )
    command = [fresh_python, "-c", REMOTE, str(folder), str(own), json.dumps(IDS.tolist())]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    logits = model(IDS, decoder_input_ids=IDS).logits
    for remote in found["logits"]:
        torch.testing.assert_close(torch.tensor(remote), logits, rtol=0, atol=1e-5)
    assert found["generated"] == model.generate(IDS, num_beams=3, max_new_tokens=6).tolist()
    # The models of an ensemble may have different attention functions.
    assert len(model.generate(IDS, ensemble=[tiny_model(vocab_size=model.config.vocab_size)])) == len(IDS)
    assert found["mine"] == [7, "MyModel"]
    assert (folder / "again" / "cosine_of_user.py").read_text() == copied
    # A checkpoint without classes of users has no file of a user.
    tiny_model().save_pretrained(tmp_path / "plain")
    assert "registered_vaswani" not in (tmp_path / "plain" / "config.json").read_text()


def test_the_copy_of_a_file_has_no_byte_order_mark(module):
    expected = source_for_checkpoint(module.CosineAttention)
    Path(module.__file__).write_text(CODE, encoding="utf-8-sig")
    assert source_for_checkpoint(module.CosineAttention) == expected


CANNOT_TRAVEL = """
import vaswani_hf | because of line 4, 'import vaswani_hf'; write `from vaswani_hf import …` on
x = 1; from vaswani_hf import VaswaniConfig | because of line 4
from vaswani_hf import Translator | because it imports `Translator` from vaswani_hf; import only
import helper_of_user | because it imports helper_of_user; put all code that CosineAttention
'''\\nfrom .helpers import x\\n''' | because it imports .helpers; put all code that CosineAttention
"""


@pytest.mark.parametrize(("line", "reason"), rows(CANNOT_TRAVEL))
def test_a_file_that_cannot_travel_is_named(module, tiny_checkpoint, repo_id, vaswani, caplog, line, reason):
    Path(module.__file__).with_name("helper_of_user.py").touch()
    line = line.replace("\\n", "\n")
    Path(module.__file__).write_text(CODE.replace("import torch\n", f"import torch\n{line}\n", 1))
    importlib.reload(module)
    folder = tiny_checkpoint(**USER_FIELDS)
    assert not (folder / "registered_vaswani.py").exists()
    code, _, message = vaswani("push", folder, repo_id)
    assert code == 1 and f"cannot be saved with a checkpoint, {reason}" in message


def test_another_class_of_the_same_name_is_refused(module, tmp_path, monkeypatch):
    """A copy of the file may register the class again. A file with another class of this name is refused."""
    (tmp_path / "user" / "copy_of_user.py").write_text(CODE)
    assert importlib.import_module("copy_of_user").CosineAttention is ATTENTIONS.classes["cosine"]
    (tmp_path / "user" / "other_of_user.py").write_text(CODE.replace("self.temperature * query", "query"))
    with pytest.raises(
        ValueError, match="'cosine' is registered for CosineAttention of the module copy_of_user"
    ):
        importlib.import_module("other_of_user")


def test_a_push_publishes_the_users_file(hub, module, tiny_checkpoint, repo_id, vaswani):
    assert vaswani("push", tiny_checkpoint(**USER_FIELDS), repo_id)[0] == 0
    files = hub.repository(repo_id).files()
    assert {"cosine_of_user.py", "registered_vaswani.py", "extension_vaswani.py"} <= files.keys()


class LostBuffer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("table", torch.ones(9, config.d_model), persistent=False)


class LostTensor(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = torch.ones(9, config.d_model)


class OneFeature(nn.Module):
    def __init__(self, config):
        super().__init__()

    def forward(self, position_ids):
        return position_ids[..., None].float()


class OneHead(VaswaniAttention):
    def scores(self, query, key):
        return super().scores(query, key).mean(dim=1, keepdim=True)


class OneKey(VaswaniAttention):
    def scores(self, query, key):
        return super().scores(query, key)[..., :1]


SHAPE = r"`{}.scores` must return the shape \[B, H, T, S\] = \["
FAULTS = {
    LostBuffer: "The buffer `embed_positions.table` of a registered class must be",
    LostTensor: "The tensor `embed_positions.table` of a registered class must be",
    # These results would broadcast.
    OneFeature: "`OneFeature.forward` must return the shape .* but returns the shape",
    OneHead: SHAPE.format("OneHead"),
    OneKey: SHAPE.format("OneKey"),
}


@pytest.mark.parametrize(("kind", "message"), FAULTS.items())
def test_a_faulty_class_is_refused(module, kind, message):
    is_attention = issubclass(kind, VaswaniAttention)
    (register_attention if is_attention else register_position_encoding)("faulty", kind)
    field = "attention_score" if is_attention else "position_embedding"
    with pytest.raises(ValueError, match=f"^{message}"):
        tiny_model(**{field: "faulty"})(IDS, decoder_input_ids=IDS)
