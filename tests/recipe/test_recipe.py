"""Recipes: the files of the project, YAML, the command line, and rules that concern several keys."""

import functools
import inspect
from pathlib import Path

import pytest
import yaml
from sentences import contains, refused, rows

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.inputs_vaswani import DECODING_SETTINGS
from vaswani_hf.recipe import load_recipe
from vaswani_hf.recipe.data_record import data_record
from vaswani_hf.recipe.licenses import data_license
from vaswani_hf.recipe.loading import try_load_recorded_recipe
from vaswani_hf.recipe.published import published_recipe
from vaswani_hf.settings.sections import MODEL_KEYS, DecodingSettings

CONFIGURATION = Path(__file__).parents[2] / "configuration"
MINIMAL = "output_dir: out\ndata: {source_language: en, target_language: de, corpus: numbers}\ntraining: {max_steps: 3}\n"


@pytest.fixture
def files(tmp_path):
    """Write texts to files (`rows__b` to rows/b.yaml), and return the folder."""

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def recipe_file(files):
    return lambda text=MINIMAL: files(recipe=text) / "recipe.yaml"


@pytest.fixture
def loaded(recipe_file):
    """Load a recipe with options, which spaces separate."""
    return lambda options="", text=MINIMAL: load_recipe(recipe_file(text), options.split())


def message(*args) -> str:
    with pytest.raises(ValueError) as caught:
        load_recipe(*args)
    return str(caught.value)


def recipe_files(folder="."):
    return [
        path
        for path in sorted((CONFIGURATION / folder).rglob("*.yaml"))
        if path.parent.name not in ("accelerate", "ablations")
    ]


@pytest.mark.parametrize("path", recipe_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_recipe_of_the_project_loads_and_comments_on_itself(path):
    needs_files = "train_source train" in path.read_text()
    recipe = load_recipe(path, ["--train_source=a", "--train_target=b"] if needs_files else [])
    assert recipe.output_dir == "checkpoints/" + path.relative_to(CONFIGURATION).with_suffix("").as_posix()
    assert path.read_text().startswith("# ")


@functools.cache
def values(name: str) -> dict:
    found = load_recipe(CONFIGURATION / f"{name}.yaml").values()
    del found["output_dir"]
    return found


def differences(name: str, base: str) -> dict:
    """The values in which a recipe differs from another recipe, by `section.key`; missing keys are None."""
    other, earlier = values(name), values(base)
    return {
        key: other.get(key) for key in other.keys() | earlier.keys() if other.get(key) != earlier.get(key)
    }


def of_model(**fields) -> dict:
    # A name that begins with "stacks" means the field of the encoder and the field of the decoder.
    return {
        f"model.{name.replace('stacks', stack)}": value
        for name, value in fields.items()
        for stack in (("encoder", "decoder") if "stacks" in name else ("",))
    }


SCORED_AS_TABLE_3 = {
    "data.test_split": "validation",
    "data.test_name": "newstest2013",
    "training.average_checkpoints": 0,
}
BIG = of_model(d_model=1024, stacks_ffn_dim=4096, stacks_attention_heads=16, dropout=0.3) | {
    "training.max_steps": 300000,
    "training.save_steps": 600,
    "training.save_total_limit": 20,
    "training.average_checkpoints": 20,
}
FRENCH = {"data.target_language": "fr", "data.dataset_config": "fr-en", "tokenizer.vocab_size": 32000}
# Table 3 of the paper; an empty cell has the value of the row "base".
TABLE_3 = {
    "base": {},
    "a_h_1": of_model(stacks_attention_heads=1, d_k=512, d_v=512),
    "a_h_4": of_model(stacks_attention_heads=4, d_k=128, d_v=128),
    "a_h_16": of_model(stacks_attention_heads=16, d_k=32, d_v=32),
    "a_h_32": of_model(stacks_attention_heads=32, d_k=16, d_v=16),
    "b_d_k_16": of_model(d_k=16),
    "b_d_k_32": of_model(d_k=32),
    "c_n_2": of_model(stacks_layers=2),
    "c_n_4": of_model(stacks_layers=4),
    "c_n_8": of_model(stacks_layers=8),
    "c_d_model_256": of_model(d_model=256, d_k=32, d_v=32),
    "c_d_model_1024": of_model(d_model=1024, d_k=128, d_v=128),
    "c_d_ff_1024": of_model(stacks_ffn_dim=1024),
    "c_d_ff_4096": of_model(stacks_ffn_dim=4096),
    "d_dropout_0.0": of_model(dropout=0.0),
    "d_dropout_0.2": of_model(dropout=0.2),
    "d_label_smoothing_0.0": of_model(label_smoothing=0.0),
    "d_label_smoothing_0.2": of_model(label_smoothing=0.2),
    "e_learned_positions": of_model(position_embedding="learned"),
    "big": {key: value for key, value in BIG.items() if key != "training.average_checkpoints"},
}


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_of_table_3_differs_from_base_in_what_the_table_says(row):
    assert differences(f"table3/{row}", "table3/base") == TABLE_3[row]
    assert differences(f"table3/{row}", "wmt14/base_en_de") == TABLE_3[row] | SCORED_AS_TABLE_3


def test_table_3_has_no_other_rows():
    assert {path.stem for path in recipe_files("table3")} == TABLE_3.keys()


def test_the_models_of_the_paper_differ_in_what_it_says():
    assert differences("wmt14/big_en_de", "wmt14/base_en_de") == BIG
    assert differences("wmt14/base_en_fr", "wmt14/base_en_de") == FRENCH
    # Section 6.1: English-French "used dropout rate P_drop = 0.1, instead of 0.3".
    assert differences("wmt14/big_en_fr", "wmt14/big_en_de") == FRENCH | {"model.dropout": 0.1}
    of_the_paper = {f"{size}_en_{language}" for size in ("base", "big") for language in ("de", "fr")}
    assert {path.stem for path in recipe_files("wmt14")} == of_the_paper | {"base_en_de_long"}


def test_the_long_training_has_the_settings_of_fairseq_apollo():
    found = differences("wmt14/base_en_de_long", "wmt14/base_en_de")
    assert {key: value for key, value in found.items() if key.startswith("model.")} == of_model(
        attention_dropout=0.1, activation_dropout=0.1
    )
    expected = {"optimizer": "adamw", "weight_decay": 1e-4, "adam_epsilon": 1e-8, "max_grad_norm": 1.0}
    expected |= {"lr_scheduler_type": "inverse_sqrt", "learning_rate": 5e-4, "max_steps": 500000}
    assert {key: found[f"training.{key}"] for key in expected} == expected
    assert "training.warmup_steps" not in found and "training.adam_beta2" not in found


def test_the_base_model_is_trained_and_searched_as_sections_5_and_6_1_say():
    # The paper saves a checkpoint every ten minutes, and a step takes 0.4 seconds.
    paper = """
        data: {dataset: wmt/wmt14, dataset_config: de-en}
        tokenizer: {vocab_size: 37000, shared_vocabulary: true}
        model: {dropout: 0.1, label_smoothing: 0.1}
        training:
          {max_steps: 100000, source_tokens_per_batch: 25000, target_tokens_per_batch: 25000, gradient_accumulation_steps: 1,
           learning_rate_factor: 1.0, warmup_steps: 4000, adam_beta1: 0.9, adam_beta2: 0.98, adam_epsilon: 1.0e-9,
           save_steps: 1500, average_checkpoints: 5}
        decoding:
          {num_beams: 4, length_penalty: 0.6, length_penalty_type: gnmt, max_length_a: 1, max_length_b: 50}
    """
    found = values("wmt14/base_en_de")
    for section, keys in yaml.safe_load(paper).items():
        for key, value in keys.items():
            assert found[f"{section}.{key}"] == value, key


def test_a_recipe_survives_being_written(loaded):
    recipe = loaded("--d_k=16 --bf16=true --report_to=tensorboard,wandb")
    assert loaded(text=recipe.to_yaml()) == recipe
    assert recipe.model.config_fields() == {"d_k": 16}
    assert recipe.training.report_to == ["tensorboard", "wandb"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.en", "a.en"),
        ("a.en,b.en", ["a.en", "b.en"]),
        ("[a.en, b.en]", ["a.en", "b.en"]),
        ('["a,b.en"]', ["a,b.en"]),
        ("train-*.en", "train-*.en"),
        (",".join(["train-00000-of-00032.en"] * 30), ["train-00000-of-00032.en"] * 30),
        ("[ab].en", "[ab].en"),
    ],
)
def test_a_file_may_be_several(recipe_file, text, expected):
    path = recipe_file(MINIMAL.replace("corpus: numbers", "train_source: x, train_target: [y]"))
    assert load_recipe(path).data.train_target == ["y"]
    recipe = load_recipe(path, ["--train_source", text, "--data.train_target", text])
    assert recipe.data.train_source == recipe.data.train_target == expected
    assert load_recipe(recipe_file(recipe.to_yaml())) == recipe


def test_a_record_is_read_where_a_tokenizer_of_sacrebleu_is_missing(recipe_file):
    path = recipe_file(f"{MINIMAL}evaluation: {{tokenize: ja-mecab}}\n")
    with pytest.raises(
        ValueError, match="`evaluation.tokenize` is 'ja-mecab', which needs a package or a file"
    ):
        load_recipe(path)
    assert try_load_recorded_recipe(path).evaluation.tokenize == "ja-mecab"


def test_numbers_with_exponents_are_numbers(loaded):
    text = MINIMAL.replace("max_steps: 3", "max_steps: 3, adam_epsilon: 1e-9, learning_rate_factor: 7e-4")
    training = loaded(text=text).training
    assert (training.adam_epsilon, training.learning_rate_factor) == (1e-9, 7e-4)
    assert loaded("--learning_rate_factor=5E-1").training.learning_rate_factor == 0.5


def test_numbers_are_decimal(loaded):
    recipe = loaded("--max_steps=0100 --warmup_steps=1_000 --seed=010")
    assert (recipe.training.max_steps, recipe.training.warmup_steps, recipe.seed) == (100, 1000, 10)
    assert loaded(text=MINIMAL.replace("max_steps: 3", "max_steps: 010")).training.max_steps == 10
    assert loaded(text=MINIMAL.replace("out\n", "2026-02-30\n")).output_dir == "2026-02-30"


@pytest.mark.parametrize("text", "1e-3 0100 1:30 1_000 .5 1. .inf 2026-02-03 2026-02-30 yes null".split())
def test_a_text_that_looks_like_another_value_is_written_in_quotes(loaded, text):
    written = loaded(f"--output_dir={text}").to_yaml()
    assert loaded(text=written).output_dir == yaml.safe_load(written)["output_dir"] == text


def test_command_line_wins_by_name_or_by_place(loaded):
    assert loaded("--max_steps 7").training.max_steps == 7
    assert loaded("--training.max_steps=8").training.max_steps == 8
    assert loaded("--output_dir 123").output_dir == "123"
    assert loaded("--output_dir ~/run").output_dir == str(Path.home() / "run")
    assert loaded("--trackio_static_space_id false").publishing.trackio_static_space_id is False
    assert loaded("--dropout 0.3").model.config_fields() == {"dropout": 0.3}
    assert loaded("--normalization null").tokenizer.normalization is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man, a plan.", ["A man, a plan."]),
        ("A man.", ["A man."]),
        ('[A man., "A man, a plan."]', ["A man.", "A man, a plan."]),
        ("", None),
        ("null", None),
    ],
)
def test_an_example_may_hold_a_comma(recipe_file, text, expected):
    assert load_recipe(recipe_file(), ["--examples", text]).publishing.examples == expected


def test_the_name_of_a_file_may_hold_a_comma(recipe_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a,b.en").touch()
    text = MINIMAL.replace("corpus: numbers", "train_source: x, train_target: y")
    assert load_recipe(recipe_file(text), ["--train_source", "a,b.en"]).data.train_source == "a,b.en"


# Words of the command line, and the parts of the expected error message, separated by " ... ".
WRONG = """
--max_stepz=3 | `--max_stepz` ... nearest key ... `--max_steps`
--max_steps=-3 | `training.max_steps` must be greater than 0 ... -3
--max_steps=1:30 | `training.max_steps` must be an integer, but is '1:30'.
--max_steps=[1 | `--max_steps` ... YAML ... '[1' ... close its brackets
--init_from={} | `model.init_from` must name a model
--d_k=0 | `model.d_k` must be a positive integer or null, but is 0
--attention_score=cosine | `model.attention_score` must be ... 'cosine'; to use an added name, import its Python file
--d_model=7 | `model.d_model` must be a multiple of `model.encoder_attention_heads` ... 7 is no multiple
--seed | `--seed` needs a value
--seed=99999999999 | `seed` must be less than 4294967296
--max_steps=1 --training.max_steps=2 | `--training.max_steps` is given twice
--normalization=NFX | `tokenizer.normalization` must be 'NFC' or 'NFKC'
--vocab_size=100 | `tokenizer.vocab_size` must be 260 or more
--top_k=5 | `decoding.top_k` is a setting of sampling and must come with `decoding.do_sample`
--early_stopping=always | `decoding.early_stopping` must be true, false or "never", but is 'always'
--max_length_ratio=0.5 | `data.max_length_ratio` must be 1 or more
--lowercase=true | `--tokenizer.lowercase` or `--evaluation.lowercase`
--num_train_epochs=2 | Exactly one of `training.max_steps` and `training.num_train_epochs` ... 3 and 2.0
--source_tokens_per_batch=100 | `training.source_tokens_per_batch` must be at least `data.max_length` = 256 ... 100
--average_checkpoints=9 | `training.average_checkpoints` is 9 ... `training.save_total_limit` = 5
--early_stopping_patience=1 --average_checkpoints=2 | give only one of these keys
--early_stopping_score=1 --average_checkpoints=2 | `training.early_stopping_score` selects ... give only one of these keys
--early_stopping_patience=1 --save_steps=750 | 750 is no multiple of 500
--metric_for_best_model=bleu | a score that the validation computes (loss) ... section `evaluation`
--r_drop_alpha=1 --dropout=0 | `training.r_drop_alpha: 1.0` ... `model.dropout` is 0
--push_to_hub=true | needs `publishing.hub_model_id`
--hub_strategy=checkpoint | needs `publishing.push_to_hub: true`
--keep=false | `tokenizer.keep: false` needs `model.init_from`
--target_vocab_size=300 | needs `tokenizer.shared_vocabulary: false`
--position_embedding=learned --max_position_embeddings=20 | `model.max_position_embeddings` must be at least 256 ... 20
--tokenize=nonsense | `evaluation.tokenize` must be one of ... 'nonsense'
--corpus=null | Exactly one of `data.corpus`, `data.dataset`, ... none is
--dataset=user/name | Exactly one of ... `data.corpus` and `data.dataset` are
--corpus=null --train_pairs=a.jsonl,b.jsonl --validation_source=a | `data.validation_source` and `data.validation_target` must be given together ... 'a' and None
--test_pairs=a.jsonl | `data.test_pairs` and `data.corpus` cannot be given together
--source_language=de --target_language=en | `data.corpus: numbers` has pairs from en to de ... are 'de' and 'en'; set
--output_dir= | `output_dir` must
--corpus=null --train_pairs=a.jsonl --target_language=en | `data.train_pairs` ... both 'en'
--streaming=true --bpe_dropout=0.1 | `data.streaming: true` needs
--both_directions=true --shared_vocabulary=false | `data.both_directions: true` ... `tokenizer.shared_vocabulary` is false
--corpus=null --train_pairs=a.jsonl --both_directions=true --target_language=en | `data.both_directions: true` needs two languages
--both_directions=true --vocab_size=260 | `tokenizer.vocab_size` must be at least 261 ... 260
--train_weights=1,{2 | `--train_weights` ... YAML ... '{2'
--train_weights=1,2 | `data.train_weights: [1, 2]` needs files
--augment={"typos":1.5} | `data.augment.typos` must be 1 or less, but is 1.5
--corpus=null --train_pairs=a.jsonl,b.jsonl --train_weights=1,2,3 | `data.train_weights` must have a number for each entry of `data.train_pairs` ... 2 ... [1, 2, 3]
--corpus=null --train_pairs=a.jsonl,b.jsonl --train_weights=0,-1 | `data.train_weights[1]` must be 0 or more, but is -1
--corpus=null --train_pairs=a.jsonl,b.jsonl --train_weights=1,1001 | `data.train_weights[1]` must be 1000 or less
--corpus=null --train_pairs=a.jsonl,b.jsonl --train_weights=0,0.0 | `data.train_weights` must have at least one number above 0
--corpus=null --train_pairs=a.jsonl,b.jsonl --train_weights=1,2 --streaming=true | `data.train_weights: [1, 2]` cannot be given with `data.streaming: true`
--r_drop_alpha=1 --simcut_alpha=3 | `training.r_drop_alpha: 1.0` and `training.simcut_alpha: 3.0` turn on two regularisers
--ema_decay=1.2 | `training.ema_decay` must be less than 1, but is 1.2.
--simcut_p=0.1 | `training.simcut_p: 0.1` needs `training.simcut_alpha`, but `simcut_alpha` is 0.0; set `simcut_alpha` to a positive number, or leave
--r_drop_alpha=-1 | `training.r_drop_alpha` must be 0 or more, but is -1.
--weight_decay=0.1 | `training.weight_decay` belongs to `training.optimizer: adamw or muon or schedule_free_adamw`, but is 0.1 with `training.optimizer: adam`
--lr_scheduler_type=cosine | `training.learning_rate` must be given with `training.lr_scheduler_type: cosine`, but is missing.
--learning_rate=0.1 | `training.learning_rate` belongs to ... inverse_sqrt or cosine or constant`, but is 0.1 with ... paper`; leave
--optimizer=adamv | `training.optimizer` must be 'adam' or 'adamw' or 'muon' or 'schedule_free_adamw', but is 'adamv'; the nearest name is 'adam'.
--optimizer=schedule_free_adamw | `training.lr_scheduler_type` must be constant with `training.optimizer: schedule_free_adamw` ... is 'paper'; set `training.lr_scheduler_type: constant`
--optimizer=schedule_free_adamw --lr_scheduler_type=constant --learning_rate=1 --ema_decay=0.9 | `training.ema_decay` must be null ... is 0.9; leave
--optimizer=schedule_free_adamw --lr_scheduler_type=constant --learning_rate=1 --average_checkpoints=2 | `training.average_checkpoints` must be 0 ... is 2; set
--optimizer=schedule_free_adamw --lr_scheduler_type=constant --learning_rate=1 --average_checkpoints=0 --adam_beta1=0 | `training.adam_beta1` must be above 0
--adam_beta2=1 | `training.adam_beta2` must be less than 1, but is 1.
--learning_rate=0.1 --lr_scheduler_type=constant --learning_rate_factor=2 | `training.learning_rate_factor` belongs to ... paper`
--data.license=research-only --publishing.license=cc-by-nc-4.0 | `publishing.license` must be research-only or left out
--data.license=cc-by-nc-4.0 --publishing.license=mit | `publishing.license` must not be a licence for commercial use
"""


@pytest.mark.parametrize(("words", "parts"), rows(WRONG))
def test_a_wrong_command_line_is_one_sentence(recipe_file, words, parts):
    sentence = message(recipe_file(), words.split())
    assert contains(sentence, parts), sentence


def test_a_word_without_its_key_and_a_language_of_two_words_are_one_sentence(recipe_file):
    assert (
        message(recipe_file(), ["seed", "3"])
        == "Expected `--key value`, but found 'seed' where a key should be."
    )
    sentence = message(recipe_file(), ["--both_directions", "true", "--source_language", "old English"])
    assert contains(sentence, "`data.source_language` must be one word ... 'old English'")


FILES = "--corpus=null --train_source=a.en --train_target=a.de"
DATASET = "--corpus=null --dataset=user/name"
VALIDATION = "--validation_source=b.en --validation_target=b.de"


@pytest.mark.parametrize(
    ("section", "key", "value", "remedy"),
    [
        ("training", "early_stopping_patience", "2", "leave `early_stopping_patience` out"),
        ("evaluation", "validation_bleu", "true", "set `validation_bleu` to false"),
    ],
)
def test_a_run_without_the_validation_that_it_needs_is_refused(loaded, section, key, value, remedy):
    option = f"--{key}={value} --warmup_steps=1"
    sides = "`data.validation_source` with `data.validation_target`"
    without = {FILES: sides, f"{DATASET} --validation_split=null": "`data.validation_split`"}
    for sources, keys in without.items():
        # Other commands, such as `distill`, read no validation split.
        recipe = loaded(f"{sources} {option}")
        with refused(
            f"`{section}.{key}: {value}` needs a validation split, but there is none; give {keys}, or "
            f"`data.validation_size`, or {remedy}."
        ):
            recipe.training_warnings()
    for sources in ("", f"{FILES} {VALIDATION}", DATASET):
        assert loaded(f"{sources} {option}").training_warnings() == []


def test_what_may_be_a_mistake_is_said(loaded):
    assert loaded(f"{FILES} --target_language=en --warmup_steps=4").training_warnings() == [
        "`data.source_language` and `data.target_language` are both 'en'; correct one of the two keys unless the targets are paraphrases "
        "or corrections of the sources.",
        "`training.warmup_steps` is 4, but the run has 3 steps, so the learning rate never reaches its highest value; lower "
        "`training.warmup_steps`, or train for more steps.",
    ]
    assert loaded("--warmup_steps=3").training_warnings() == []
    assert loaded("--max_steps=null --num_train_epochs=2").training_warnings() == []


# A recipe, or the end of the minimal recipe, and the parts of the expected error message.
WRONG_FILES = """
MINIMAL trainer: {} | `trainer` ... {} ... nearest key is `training`
MINIMAL model: {layers: 2} | `model.layers` ... 2 ... nearest key is `model.encoder_layers`
MINIMAL model: {xyzzy: 2} | `model.xyzzy` is not a key of a recipe, but is set to 2.
MINIMAL model: {d_modell: 64} | `model.d_modell` ... 64 ... nearest key is `model.d_model`
MINIMAL model: {vocab_size: 64} | `model.vocab_size` ... 64; write `tokenizer.vocab_size`
MINIMAL dropout: 0.3 | `dropout` ... 0.3; write `model.dropout`
MINIMAL output_dir: b | `output_dir` occurs twice in the mapping that begins in line 1; give the key only once.
MINIMAL model: {init_from: {encoder: a, encoder: b}} | `encoder` occurs twice
MINIMAL model: 3 | `model` in ... must be a mapping of keys to values, but is 3.
MINIMAL extendz: b.yaml | `extendz` ... 'b.yaml' ... `extends`
MINIMAL model: {extends: b.yaml} | `model.extends` ... 'b.yaml'
training: {warmup: 5} | `training.warmup` ... 5 ... `training.warmup_steps`
- 1 | must be a mapping of keys to values, but is list
a: [1 | is no YAML
data: {source_language: en, target_language: de} | `output_dir` must be given, but is missing.
{output_dir: out, data: {target_language: de, corpus: numbers}} | `data.source_language` must be given, but is missing.
"""


@pytest.mark.parametrize(("text", "parts"), rows(WRONG_FILES))
def test_a_wrong_file_is_one_sentence(recipe_file, text, parts):
    found = message(recipe_file(text.replace("MINIMAL ", MINIMAL)))
    assert contains(found, parts), found


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "no.yaml"
    assert message(path) == f"The recipe '{path}' cannot be read: No such file or directory."


def test_every_field_of_the_config_is_a_key_of_the_recipe_or_follows_from_the_tokenizer_and_the_run():
    fields = set(inspect.get_annotations(VaswaniConfig))
    run = {"is_encoder_decoder", "share_encoder_decoder_embeddings", "use_cache"}
    assert fields - set(MODEL_KEYS) == run | {
        name for name in fields if name.endswith(("vocab_size", "_token_id"))
    }
    assert set(MODEL_KEYS) < fields


def test_decoding_has_the_settings_of_generate_and_the_search_of_the_paper():
    decoding = DecodingSettings()
    search = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt", "early_stopping": False}
    search |= {"max_length_a": 1.0, "max_length_b": 50}
    of_call = {"num_return_sequences": 1}
    assert decoding.model_dump() | of_call == DECODING_SETTINGS | search
    assert decoding.settings() == search


def test_decoding_writes_settings_that_differ_from_the_defaults(loaded):
    words = "--early_stopping=never --coverage_penalty=0.2 --no_repeat_ngram_size=3 --max_length_b=null"
    settings = loaded(f"{words} --temperature=1.0 --top_k=50").decoding.settings()
    paper = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "gnmt", "max_length_a": 1.0}
    chosen = {"early_stopping": "never", "coverage_penalty": 0.2, "no_repeat_ngram_size": 3}
    assert settings == paper | chosen
    greedy = loaded(f"{words} --num_beams=1").decoding.settings()
    assert greedy == {"num_beams": 1, "max_length_a": 1.0, "no_repeat_ngram_size": 3}


# A licence of data, and a licence of a model that the data permits.
PERMITTED = """
research-only | research-only
research-only | null
cc-by-nc-4.0 | cc-by-nc-nd-4.0
cc-by-nc-4.0 | fair-noncommercial-research-license
cc-by-nc-4.0 | other
cc-by-sa-4.0 | mit
null | apache-2.0
"""


@pytest.mark.parametrize(("of_data", "of_model"), rows(PERMITTED))
def test_a_licence_that_the_data_may_allow_is_taken(loaded, of_data, of_model):
    recipe = loaded(f"--corpus=null --train_pairs=a --data.license={of_data} --publishing.license={of_model}")
    assert recipe.publishing.license == (None if of_model == "null" else of_model)


def test_the_corpus_that_the_package_makes_has_its_licence(loaded):
    assert data_license(loaded().data) == "apache-2.0"
    assert data_license(loaded(FILES).data) is None


def test_a_published_recipe_has_no_folders_and_loads_again(loaded):
    options = (
        "--corpus=null --output_dir=/home/alice/runs/first/ --push_to_hub=true --hub_model_id=alice/model"
    )
    options += " --train_pairs=/home/alice/a.jsonl,b/c*.csv,d.json --validation_pairs=../data/pairs.jsonl"
    options += " --test_source=/home/alice/test.source.gz --test_target=/home/alice/test.target.gz"
    recipe = loaded(options)
    published = published_recipe(recipe)
    assert (published.output_dir, published.data.validation_pairs) == ("first", "pairs.jsonl")
    assert published.data.train_pairs == ["a.jsonl", "c*.csv", "d.json"]
    assert (published.data.test_source, published.data.test_target) == ("test.source.gz", "test.target.gz")
    assert loaded(text=published.to_yaml()) == published
    assert "alice/" not in published.to_yaml().replace("alice/model", "") and ".." not in published.to_yaml()
    assert published.training == recipe.training
    assert "alice" not in yaml.safe_dump(data_record(recipe.data).as_json())
    assert data_record(published.data).as_json()["train"] == {
        "name": "a.jsonl",
        "files": ["a.jsonl", "c*.csv", "d.json"],
    }


@pytest.mark.parametrize(
    ("given", "published"),
    [("wmt14", "wmt14"), ("wmt/wmt14", "wmt/wmt14"), ("/data/mine", "mine"), ("./mine/", "mine")],
)
def test_a_published_dataset_is_that_of_the_hub_or_the_name_of_a_folder(loaded, given, published):
    assert published_recipe(loaded(f"--corpus=null --dataset={given}")).data.dataset == published


def test_a_recipe_is_merged_over_the_one_that_it_extends(files):
    folder = files(
        base=MINIMAL + "model: {d_model: 64, d_k: 8}\nseed: 7\n",
        rows__middle="extends: ../base.yaml\nmodel: {d_k: 16}\ndata: {train_pairs: [a, b], corpus: null}\n",
        rows__last="extends: middle.yaml\noutput_dir: last\ndata: {train_pairs: [c]}\ntraining: {warmup_steps: 5}\n",
    )
    recipe = load_recipe(folder / "rows" / "last.yaml", ["--d_k", "32"])
    assert (recipe.output_dir, recipe.seed, recipe.model.d_model, recipe.model.d_k) == ("last", 7, 64, 32)
    # Lists are replaced.
    assert (recipe.data.train_pairs, recipe.data.corpus) == (["c"], None)
    assert (recipe.training.max_steps, recipe.training.warmup_steps) == (3, 5)
    assert load_recipe(folder / "rows" / "middle.yaml").model.config_fields() == {"d_model": 64, "d_k": 16}
    # The recorded recipe is complete and extends no other recipe.
    (folder / "rows" / "written.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    assert "extends" not in recipe.to_yaml()
    assert load_recipe(folder / "rows" / "written.yaml") == recipe


def test_a_section_whose_keys_are_all_commented_out_changes_nothing(files):
    texts = {
        "base": MINIMAL + "model: {d_model: 64}\n",
        "own": "extends: base.yaml\nmodel:\n  # d_model: 8\ntraining:\n",
    }
    folder = files(**texts)
    assert load_recipe(folder / "own.yaml", ["--seed", "1"]) == load_recipe(
        folder / "base.yaml", ["--seed", "1"]
    )
    assert load_recipe(folder / "own.yaml", ["--d_k", "4"]).model.config_fields() == {"d_model": 64, "d_k": 4}


def test_a_mapping_inside_a_section_is_taken_away_by_null(files):
    folder = files(
        recipe="extends: base.yaml\nmodel: {init_from: null}\n",
        base=MINIMAL + "model: {init_from: {encoder: a}}\n",
    )
    assert load_recipe(folder / "recipe.yaml").model.init_from is None
    parts = load_recipe(folder / "recipe.yaml", ["--init_from", "{encoder: a, decoder: b}"]).model.init_from
    assert parts.by_stack() == {"encoder": "a", "decoder": "b"}


def test_what_is_extended_need_not_be_a_whole_recipe(files):
    folder = files(
        part="training: {max_steps: 3}\n", whole="extends: part.yaml\n" + MINIMAL.split("training")[0]
    )
    assert load_recipe(folder / "whole.yaml").training.max_steps == 3
    assert message(folder / "part.yaml") == "`output_dir` must be given, but is missing."


# The files recipe.yaml and rows/b.yaml in a FOLDER, and the parts of the expected error message.
WRONG_EXTENSIONS = """
extends: no.yaml | - | 'FOLDER/no.yaml' cannot be read: No such file or directory ... 'FOLDER/recipe.yaml'
extends: . | - | 'FOLDER' cannot be read: Is a directory; correct `extends` in 'FOLDER/recipe.yaml'
extends: recipe.yaml | - | `extends: recipe.yaml` in 'FOLDER/recipe.yaml' creates a circle
extends: rows/b.yaml | extends: ../recipe.yaml | circle, 'FOLDER/recipe.yaml' extends 'FOLDER/rows/b.yaml' extends 'FOLDER/rows/../recipe.yaml'
{extends: rows/b.yaml, training: {max_steps: 3}} | training: [1] | `training` in 'FOLDER/rows/b.yaml' must be a mapping of keys to values, but is [1].
extends: [a.yaml] | - | `extends` in ... must be text ... ['a.yaml']
extends: | - | `extends` in ... must be text ... None
extends: rows/b.yaml | {seed: 1, seed: 2} | `seed` occurs twice ... of 'FOLDER/rows/b.yaml'
extends: rows/b.yaml | - 1 | 'FOLDER/rows/b.yaml' must be a mapping of keys to values
"""


@pytest.mark.parametrize(("recipe", "b", "parts"), rows(WRONG_EXTENSIONS))
def test_wrong_extensions_are_one_sentence(files, recipe, b, parts):
    folder = files(recipe=recipe, rows__b=b)
    sentence = message(folder / "recipe.yaml")
    assert contains(sentence, parts.replace("FOLDER", str(folder))), sentence


# Only the recipes of other tasks have the key `data.language`.
ON_RESUME = """
fixed | task seed data.test_size data.language training.bf16 model.d_model model.init_from.encoder
free | output_dir data.num_proc data.train_source model.code training.resume publishing.hub_model_id
continue | data.test_source data.test_split training.max_steps decoding.num_beams evaluation.tokenize
"""


@pytest.mark.parametrize(("on_resume", "keys"), rows(ON_RESUME))
def test_a_key_declares_what_a_resumed_run_does_with_another_value(loaded, on_resume, keys):
    recipe = loaded()
    assert {key: recipe.on_resume(key) for key in keys.split()} == dict.fromkeys(keys.split(), on_resume)
