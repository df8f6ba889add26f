"""Pairs are read without changes from every kind of file, cleaned by stated rules, and encoded only once."""

import codecs
import csv
import errno
import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, IterableDataset
from factories import loaded_recipe, tiny_tokenizer
from sentences import refused
from sentences import rows as rows_of
from transformers import AutoTokenizer

from vaswani_hf.data.corpus_cache import corpus_digest
from vaswani_hf.data.encoding import CorpusReport, PairEncoder, prepare_pairs
from vaswani_hf.data.lines import MissingFileError, read_lines
from vaswani_hf.data.loading import PairSource, load_pairs
from vaswani_hf.model.errors_vaswani import InvalidValueError
from vaswani_hf.tasks.translation import TranslationData, TranslationTask, TranslationTokenizer

pytestmark = pytest.mark.usefixtures("own_cache")

PAIRS = [
    ("ein Haus", "a house"),
    ("zwei\u2028Zeilen", "two\x85lines\x0b"),
    ("", "\ufeffnothing"),
    (" NA ", "2016-01-01"),
]
RECORDS = [{"translation": {"de": source, "en": target}} for source, target in PAIRS]


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer without merges: one token per byte, one for the space before the sentence, and `</s>`."""
    return tiny_tokenizer(["a"], 260)


def read(**arguments) -> list[tuple[str, str]]:
    pairs = load_pairs(PairSource(**arguments))
    rows = list(pairs)
    assert all(list(row) == ["source", "target"] for row in rows)
    return [(row["source"], row["target"]) for row in rows]


def refusal(**arguments) -> str:
    """The message of the error that reading these files raises."""
    with pytest.raises(ValueError) as caught:
        read(**arguments)
    assert type(caught.value) in (ValueError, InvalidValueError, MissingFileError)
    return str(caught.value)


def aligned(folder: Path, sources: list[str], targets: list[str], end: str = "\n") -> dict[str, Path]:
    paths = {"source_file": folder / "text.de", "target_file": folder / "text.en"}
    for path, lines in zip(paths.values(), (sources, targets), strict=True):
        path.write_bytes("".join(line + end for line in lines).encode())
    return paths


both_ways = pytest.mark.parametrize("streaming", [False, True])


@both_ways
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_files_are_read_line_by_line(tmp_path, end, streaming):
    paths = aligned(tmp_path, *zip(*PAIRS, strict=True), end=end)
    assert read(**paths, streaming=streaming) == PAIRS


def test_the_last_line_needs_no_end_and_a_carriage_return_inside_stays(tmp_path):
    (tmp_path / "a").write_bytes(b"one\rstill one\r\n\r\ntwo")
    (tmp_path / "b").write_bytes(b"1\n\n2")
    pairs = read(source_file=tmp_path / "a", target_file=str(tmp_path / "b"))
    assert pairs == [("one\rstill one", "1"), ("", ""), ("two", "2")]


def test_gzip_is_unpacked(tmp_path):
    for name, text in (("a.gz", "ä\nb\n"), ("b.gz", "1\n2\n")):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    assert read(source_file=tmp_path / "a.gz", target_file=tmp_path / "b.gz") == [("ä", "1"), ("b", "2")]


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path, monkeypatch):
    paths = aligned(tmp_path, ["a"], ["b"])
    first = load_pairs(PairSource(**paths))
    assert load_pairs(PairSource(**paths)).cache_files == first.cache_files
    assert first[0] == {"source": "a", "target": "b"}
    paths["target_file"].write_text("c\n")
    # The new file has the same size, and nearly the same modification time.
    os.utime(paths["target_file"], ns=(10**18, 10**18))
    assert load_pairs(PairSource(**paths))[0] == {"source": "a", "target": "c"}


@pytest.mark.parametrize(
    "damage", [lambda good: good[:-9], lambda good: good[:20] + b"xxxx" + good[24:], lambda _: b"a\n"]
)
def test_damaged_gzip_is_one_sentence(tmp_path, damage):
    path = tmp_path / "a.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(5000).hex().encode())))
    expected = f"{path} must be a gzip file, but is damaged or has another format."
    assert refusal(source_file=path, target_file=path) == expected


def write_records(path: Path) -> None:
    if path.suffix == ".parquet":
        map_type = pyarrow.map_(pyarrow.string(), pyarrow.string())
        schema = pyarrow.schema({"translation": map_type}) if path.stem == "map" else None
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS, schema), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["translation", "id"])
            writer.writerows([json.dumps(record["translation"]), 7] for record in RECORDS)
    elif path.suffix == ".json":
        path.write_text(json.dumps(RECORDS, ensure_ascii=False, indent=1), encoding="utf-8")
    else:
        path.write_text(
            "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS), encoding="utf-8"
        )


@both_ways
@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.json", "pairs.csv", "pairs.parquet", "map.parquet"])
def test_translation_columns(tmp_path, name, streaming):
    path = tmp_path / name
    write_records(path)
    assert read(pairs_file=path, source_language="de", target_language="en", streaming=streaming) == PAIRS
    assert read(pairs_file=path, source_language="en", target_language="de")[0] == ("a house", "ein Haus")


@pytest.mark.parametrize(
    ("name", "content", "pairs"),
    [
        ("lines.json", b'{"de": "a", "en": "b"}\n\n{"de": null, "en": "c"}\n', [("a", "b"), ("", "c")]),
        ("array.json", b' \n\n[{"de": "a", "en": "b"}]\n', [("a", "b")]),
        (
            "quoted.csv",
            b'en,de\r\n"b ""quoted"", here","two\r\nlines"\r\nNA,null\r\n',
            [("two\nlines", 'b "quoted", here'), ("null", "NA")],
        ),
    ],
)
def test_columns_named_by_the_languages(tmp_path, name, content, pairs):
    (tmp_path / name).write_bytes(content)
    assert read(pairs_file=tmp_path / name, source_language="de", target_language="en") == pairs


DEEP = b"[" * 100_000
DEEP_LINE = b'{"source": "a", "target": "b"}\n{"source": ' + DEEP
DEEP_FIELD = b'translation\n"' + DEEP + b'"\n'
LONG_NUMBER = b'{"source": ' + b"7" * 5_000 + b"}"
# For each file name, contents and the begin of the message.
BAD_FILES = {
    "a.jsonl": {
        b'{"source": "a", "target": "b"}\n{"sour': (
            "Line 2 of {} must be a JSON object, but is damaged or cut off at character 2 (Unterminated "
            "string starting at)."
        ),
        b'"text"\n': "Line 1 of {} must be a JSON object, but begins with '\"text\"'.",
        LONG_NUMBER: "Line 1 of {} must have no number of more than 4,300 digits, but has one.",
        b'{"source": "a", "target": "b"}\n\xff\n': "{} must be UTF-8 text, but line 2 is not.",
        b'{"translation": {"source": "a", "target": "\\udc00"}}': (
            "{}, row 1: The column `target` must hold text, but holds '\\udc00', a lone surrogate, which "
            "UTF-8 cannot write."
        ),
        DEEP_LINE: "Line 2 of {} must be a JSON object, but is nested too deeply.",
        b'{"translation": ["a", "b"]}\n': "{}, row 1: The column `translation` must map languages to sentences, but holds ['a', 'b'].",
        b'{"source": "a", "fr": "b"}\n': (
            "{}, row 1: `target_language` must be one of the languages or columns source, fr, but is target."
        ),
        b'{"translation": {"de": "a", "target": "b"}}\n': (
            "{}, row 1: `source_language` must be one of the languages or columns de, target, but is source."
        ),
        b'{"source": 3, "target": "b"}\n': "{}, row 1: The column `source` must hold text, but holds 3.",
    },
    "a.json": {
        b'\n[\n {"source": "a"},': "{} must be a JSON array, but is damaged or cut off at line 3, column 18 (Expecting value).",
        b'{"source": "a", "target": "b"}\n[1]': "Line 2 of {} must be a JSON object, but begins with '[1]'.",
        b'[{"source": "a", "target": "b"}, {"source": "a\\ud800", "target": "b"}]': (
            "{}, row 2: The column `source` must hold text, but holds '\\ud800', a lone surrogate, which "
            "UTF-8 cannot write."
        ),
        b'["text"]': "{}, row 1: A pair must be a JSON object, but is 'text'.",
    },
    "a.parquet": {b"PAR0": "{} must be a readable Parquet file, but reading failed: "},
    "a.csv": {
        DEEP_FIELD: "{}, row 1: The column `translation` must be a JSON object, but is nested too deeply.",
        b"translation\nxy\n": "{}, row 1: The column `translation` must be a JSON object, but begins with 'xy'.",
    },
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [(name, *case) for name, cases in BAD_FILES.items() for case in cases.items()],
)
def test_a_bad_file_of_pairs_is_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    assert refusal(pairs_file=path).startswith(message.format(path))


@pytest.mark.parametrize(
    ("content", "line", "fault"),
    [
        (b'source,target\na,b\n"c,' + b"d" * 140_000 + b"\ne,f\n", 3, "unexpected end of data"),
        (b"source,target\ra,b\r", 1, "new-line character seen in unquoted field"),
        (b'source,target\na,"b\nb"\nc,d,e\n', 4, "another number of fields than in the first line"),
        (b"source,target\na\n", 2, "another number of fields than in the first line"),
        (b"\nsource,target\na,b\n", 2, "another number of fields than in the first line"),
    ],
)
def test_a_damaged_csv_file_names_the_row(tmp_path, content, line, fault):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    place = f"{path} must be a CSV file, but the row that begins in line {line} is damaged ({fault}"
    said = refusal(pairs_file=path)
    assert said.startswith(place) and said.endswith("in quotes, and end each line with a line feed.")


MARK = codecs.BOM_UTF8


@both_ways
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", b"source,target\na,b\n"),
        ("pairs.json", b'[{"source": "a", "target": "b"}]'),
        ("pairs.jsonl", b'{"source": "a", "target": "b"}\n'),
    ],
)
def test_a_byte_order_mark_is_no_text(tmp_path, name, content, streaming):
    (tmp_path / name).write_bytes(MARK + content)
    assert read(pairs_file=tmp_path / name, streaming=streaming) == [("a", "b")]


def test_a_byte_order_mark_inside_a_text_stays(tmp_path):
    (tmp_path / "a").write_bytes(MARK + b"one\n" + MARK + b"two\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(MARK + MARK + b"1\n2" + MARK))
    pairs = read(source_file=tmp_path / "a", target_file=tmp_path / "b.gz")
    assert pairs == [("one", "\ufeff1"), ("\ufefftwo", "2\ufeff")]
    (tmp_path / "a").write_bytes(MARK)
    assert list(read_lines(tmp_path / "a")) == []


def test_a_field_may_have_any_length(tmp_path):
    text = "a" * 200_000
    (tmp_path / "long.csv").write_text(f'source,target\n{text},"{text}"\nc,d\n')
    assert read(pairs_file=tmp_path / "long.csv") == [(text, text), ("c", "d")]


def test_missing_files_and_unknown_kinds(tmp_path):
    expected = f"`source_file` must be an existing file, but is {tmp_path}/none."
    assert refusal(source_file=tmp_path / "none", target_file=tmp_path / "none") == expected
    path = tmp_path / "pairs.tsv"
    path.touch()
    expected = f"`pairs_file` must end in .jsonl, .json, .csv, .parquet, but is {path}."
    assert refusal(pairs_file=path) == expected


def numbered(folder: Path, counts: dict[str, int]) -> Path:
    """Files with these numbers of lines; each line names its file and its line number."""
    for name, count in counts.items():
        (folder / name).write_text("".join(f"{name} {line}\n" for line in range(count)))
    return folder


@both_ways
def test_several_files_are_read_one_after_another(tmp_path, streaming):
    folder = numbered(tmp_path, {"a.en": 2, "a.de": 2, "b.en": 1, "b.de": 1, "b[1].en": 1, "b[1].de": 1})
    files = {
        "source_file": [folder / "b.en", f"{folder}/a.en"],
        "target_file": [f"{folder}/b.de", folder / "a.de"],
    }
    expected = [("b.en 0", "b.de 0"), ("a.en 0", "a.de 0"), ("a.en 1", "a.de 1")]
    assert read(**files, streaming=streaming) == expected
    # The files of a pattern are sorted by name; if a file has exactly this name, the name is not a pattern.
    patterns = {"source_file": [f"{folder}/?.en", f"{folder}/b[1].en"], "target_file": f"{folder}/*.de"}
    assert read(**patterns, streaming=streaming) == [*expected[1:], expected[0], ("b[1].en 0", "b[1].de 0")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS[:1]), tmp_path / "x.parquet")
    (tmp_path / "y.jsonl").write_text(json.dumps({"de": "ein", "en": "a"}) + "\n")
    pairs = read(
        pairs_file=[f"{folder}/*.parquet", folder / "y.jsonl"],
        source_language="de",
        target_language="en",
        streaming=streaming,
    )
    assert pairs == [PAIRS[0], ("ein", "a")]


SEVERAL = """
a.en,b.en | a.de | `source_file` and `target_file` must have equally many files, but have 2 and 1.
?.en | a.de | `source_file` and `target_file` must have equally many files, but have 3 and 1.
a.en | | `target_file` must name a file, but is an empty list.
*.fr | a.de | `source_file` must match an existing file, but no file matches FOLDER/*.fr.
a.en,c.en | a.de,b.de | `source_file` must be an existing file, but is FOLDER/c.en.
b.en | a.de | FOLDER/b.en and FOLDER/a.de must have equally many lines, but have 2 and 1,002.
a.en,b.en | b.de,a.de | FOLDER/a.en and FOLDER/b.de must have equally many lines, but have 1,002 and 2.
a.en,o.en | a.de,o.en | FOLDER/o.en and FOLDER/o.en must hold sentence pairs, but there are none.
"""


@both_ways
@pytest.mark.parametrize(("source", "target", "sentence"), rows_of(SEVERAL.replace("| |", "|  |")))
def test_wrong_lists_of_files_are_named(tmp_path, source, target, sentence, streaming):
    folder = numbered(tmp_path, {"a.en": 1002, "a.de": 1002, "b.en": 2, "b.de": 2, "o.en": 0})
    files = [[f"{folder}/{name}" for name in side.split(",") if name] for side in (source, target)]
    said = refusal(source_file=files[0], target_file=files[1], streaming=streaming)
    assert said == sentence.replace("FOLDER", str(folder))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_an_empty_file_of_pairs_among_others_is_named(tmp_path, name):
    (tmp_path / "full.jsonl").write_text('{"source": "a", "target": "b"}\n')
    (tmp_path / name).write_text({"a.csv": "source,target\n", "a.json": "[]"}.get(name, ""))
    for streaming in (False, True):
        said = refusal(pairs_file=[tmp_path / "full.jsonl", tmp_path / name], streaming=streaming)
        assert said == f"{tmp_path}/{name} must hold sentence pairs, but there are none."


@both_ways
@pytest.mark.parametrize(
    "form", [lambda rows: rows, Dataset.from_list, lambda rows: Dataset.from_list(rows).to_iterable_dataset()]
)
def test_datasets_in_memory(form, streaming):
    dataset = form(RECORDS)
    assert read(dataset=dataset, source_language="de", target_language="en", streaming=streaming) == PAIRS


def test_a_dataset_of_plain_columns_loses_the_others():
    rows = [{"source": "a", "id": 1, "target": "b"}]
    assert read(dataset=rows) == [("a", "b")]
    assert read(dataset=IterableDataset.from_generator(lambda: iter(rows))) == [("a", "b")]


# Cleaning and encoding

# A sentence of n letters has n + 2 tokens: one for each byte, one for the space before the text, and `</s>`.
RAW = [
    ("\tabc ", " abcd\u3000"),
    ("", "abc"),
    ("abc", " \t\u2028"),
    ("abcdefgh", "abcdefgh"),
    ("abcdefghi", "abcdefgh"),
    ("a", "abcd"),
    ("a", "abcde"),
    ("abcde", "a"),
]
KEPT = [0, 3, 5]


def raw_pairs(pairs=RAW) -> Dataset:
    sources, targets = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": sources, "target": targets})


def prepare(tokenizer, pairs, target_tokenizer=None, **changes):
    limits = {"max_length": 10, "max_length_ratio": 2.0, **changes}
    return prepare_pairs(pairs, tokenizer, target_tokenizer or tokenizer, **limits)


def test_a_text_is_its_own_target(tokenizer):
    texts = raw_pairs([("ab", "other"), ("  ", "x"), ("abcdefghijklm", "x")])
    prepared, report = prepare_pairs(texts, tokenizer, None, max_length=10, max_length_ratio=None)
    ids = tokenizer("ab")["input_ids"]
    lengths = {"source_length": len(ids), "target_length": len(ids)}
    assert list(prepared) == [{"input_ids": ids, "labels": ids} | lengths]
    assert str(report) == "3 texts read, 1 kept; dropped: 1 empty, 1 too long"


@both_ways
@pytest.mark.parametrize("keep_text", [False, True])
def test_cleaning_keeps_and_counts_what_it_should(tokenizer, streaming, keep_text):
    pairs = raw_pairs().to_iterable_dataset() if streaming else raw_pairs()
    prepared, report = prepare(tokenizer, pairs, keep_text=keep_text)
    rows = list(prepared)
    assert report == CorpusReport(kept=3, empty=2, too_long=1, ratio=2)
    assert str(report) == (
        "8 pairs read, 3 kept; dropped: 2 with an empty side, 1 too long, 2 of too unequal lengths"
    )
    for row, index in zip(rows, KEPT, strict=True):
        source, target = RAW[index][0].strip(), RAW[index][1].strip()
        text = {"index": index, "source": source, "target": target} if keep_text else {}
        ids = {"input_ids": tokenizer(source)["input_ids"], "labels": tokenizer(target)["input_ids"]}
        assert row == ids | {"source_length": len(source) + 2, "target_length": len(target) + 2} | text


def test_each_side_has_its_tokenizer(tokenizer):
    target_tokenizer = tiny_tokenizer(["abcd abcd"], 265)
    prepared, _ = prepare(tokenizer, raw_pairs([("abcd", "abcd")]), target_tokenizer, max_length_ratio=None)
    assert prepared[0]["input_ids"] == tokenizer("abcd")["input_ids"]
    assert prepared[0]["labels"] == target_tokenizer("abcd")["input_ids"]
    assert len(prepared[0]["labels"]) == 2


def test_several_processes_give_the_same(tokenizer):
    pairs = raw_pairs(RAW * 5)
    alone, alone_report = prepare(tokenizer, pairs, keep_text=True)
    shared, shared_report = prepare(tokenizer, pairs, keep_text=True, num_proc=2)
    assert shared_report == alone_report == CorpusReport(kept=15, empty=10, too_long=5, ratio=10)
    assert shared.to_list() == alone.to_list()


def test_a_stream_of_several_batches_counts_once(tokenizer):
    # More than one batch of map(), one of them without any pair to keep.
    pairs = raw_pairs([("a", "")] * 1500 + [("a", "b")] * 700).to_iterable_dataset()
    prepared, report = prepare(tokenizer, pairs, keep_text=True)
    assert report.read == 0
    assert [row["index"] for row in prepared] == list(range(1500, 2200))
    assert report == CorpusReport(kept=700, empty=1500)


def test_nothing_kept_is_an_error(tokenizer):
    with refused(
        "`pairs` must contain a pair that the cleaning keeps, but has none: 2 pairs read, 0 kept; dropped: 1 with an empty"
        " side, 1 too long, 0 of too unequal lengths."
    ):
        prepare(tokenizer, raw_pairs([("a", ""), ("abcdefghi", "abc")]))


def test_pairs_are_encoded_once(tokenizer, tmp_path, monkeypatch):
    paths = aligned(tmp_path, *zip(*RAW, strict=True))
    first, first_report = prepare(tokenizer, load_pairs(PairSource(**paths)))
    # Padding and truncation change the state of a tokenizer, and therefore its hash in `datasets`.
    tokenizer(["a", "bc"], padding=True, truncation=True, max_length=3)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    with monkeypatch.context() as patched:
        patched.setattr(PairEncoder, "__call__", property(lambda _: pytest.fail("encoded again")))
        again, again_report = prepare(loaded, load_pairs(PairSource(**paths)))
    assert again.to_list() == first.to_list()
    assert again_report == first_report
    for changes in ({"max_length": 9}, {"max_length_ratio": 1.5}, {"keep_text": True}):
        prepared, _ = prepare(tokenizer, load_pairs(PairSource(**paths)), **changes)
        assert prepared.cache_files != first.cache_files
    other = tiny_tokenizer(["ab ab"], 261)
    assert prepare(other, load_pairs(PairSource(**paths)))[0].cache_files != first.cache_files


# Another process finds the pairs in the cache, although Python's hashes of strings have other values there.
TRAIN_AND_PREPARE = """
import sys
import datasets
from vaswani_hf.data.encoding import prepare_pairs
from vaswani_hf.data.loading import PairSource, load_pairs
from vaswani_hf.data.tokenizer_training import train_tokenizer
datasets.config.HF_DATASETS_CACHE, source, target = sys.argv[1:]
tokenizer = train_tokenizer(["ein Haus am Haus, ein Bau am Bau"], 300)
pairs = load_pairs(PairSource(source_file=source, target_file=target))
prepared, _ = prepare_pairs(pairs, tokenizer, tokenizer, max_length=10, max_length_ratio=2.0)
print(prepared.cache_files[0]["filename"])
print(tokenizer.backend_tokenizer.to_str())
"""


def test_another_process_trains_the_same_tokenizer_and_finds_the_pairs_in_the_cache(python, tmp_path):
    paths = aligned(tmp_path, *zip(*RAW, strict=True))
    words = map(str, (tmp_path / "cache", *paths.values()))
    command = [python, "-c", TRAIN_AND_PREPARE, *words]
    root = Path(__file__).parents[2]
    found = subprocess.run(command, check=True, cwd=root, timeout=300, capture_output=True, text=True).stdout
    tokenizer = tiny_tokenizer(["ein Haus am Haus, ein Bau am Bau"], 300)
    prepared, _ = prepare(tokenizer, load_pairs(PairSource(**paths)))
    assert found.splitlines() == [
        prepared.cache_files[0]["filename"],
        *tokenizer.backend_tokenizer.to_str().splitlines(),
    ]


def section(folder: Path, **texts: list[tuple[str, str]]) -> TranslationData:
    paths = {}
    for split, pairs in texts.items():
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            paths[f"{split}_{side}"] = str(folder / f"{split}.{side}")
            (folder / f"{split}.{side}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return TranslationData(source_language="en", target_language="de", **paths)


def load(data: TranslationData, folder: Path, **tokenizer):
    """The corpus of a run with new tokenizers. By default, a token is a byte."""
    section = TranslationTokenizer(**{"vocab_size": 260} | tokenizer)
    return TranslationTask(data, section).load_corpus(folder, new_tokenizers=True)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_split_of_empty_lines_is_found_before_the_training(tmp_path, split):
    good = [("a", "b"), ("c", "d")]
    texts = {"train": good, "validation": good, "test": good, split: [("", "a"), ("b", " \u3000"), ("", "")]}
    with refused(
        f"The {split} split of `data`: {tmp_path}/{split}.source and {tmp_path}/{split}.target must hold a pair with text on both "
        "sides, but each of its 3 pairs has an empty side."
    ):
        load(section(tmp_path, **texts), tmp_path)


@pytest.mark.parametrize("kind", ["files", "rows"])
@pytest.mark.parametrize("side", ["source", "target", None])
def test_a_test_set_needs_text_on_each_side_and_is_kept_whole(tmp_path, side, kind):
    test = {
        "source": [("", "a"), (" ", "b")],
        "target": [("a", ""), ("b", "\u3000")],
        None: [("", "a"), ("b", "")],
    }[side]
    data = section(tmp_path, train=[("a", "b"), ("c", "d")], test=test)
    place = data.test_source if side == "source" else data.test_target
    if kind == "rows":
        path = tmp_path / "test.jsonl"
        path.write_text("".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in test))
        data = data.replace(test_source=None, test_target=None, test_pairs=str(path))
        place = str(path)

    if side is None:
        assert [(pair["source"], pair["target"]) for pair in load(data, tmp_path).texts["test"]] == test
        return
    with refused(
        f"The test split of `data`: the {side} side must hold text, but {place} has only empty lines."
    ):
        load(data, tmp_path)


@both_ways
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_line_of_too_many_characters_trains_neither_the_tokenizer_nor_the_model(
    tmp_path, streaming, is_shared
):
    # With 4 tokens a side may have 64 characters. The line of 1,000 characters has only 2 tokens.
    good = [("one two", "eins zwei"), ("x" * 64, "y")] * 3
    odd = [("a" * 1000, "zwei"), ("two", " " * 65), ("two", "b" * 65), ("x" * 65, "")]

    def corpus_of(name, pairs):
        folder = tmp_path / name
        folder.mkdir()
        data = section(folder, train=pairs).replace(streaming=streaming, max_length=4)
        return load(data, folder, vocab_size=300, shared_vocabulary=is_shared)

    with_odd, without = corpus_of("odd", odd + good), corpus_of("good", good)
    for name in ("source_tokenizer", "target_tokenizer"):
        assert getattr(with_odd, name).get_vocab() == getattr(without, name).get_vocab()
    assert list(with_odd.train) == list(without.train)
    report = with_odd.reports["train"]
    assert report == CorpusReport(kept=6, empty=2, too_many_characters=2)
    assert str(report).endswith(", 2 with more than 16 characters per token of `data.max_length`")


def test_a_corpus_in_one_line_is_refused_with_the_limit(tmp_path):
    data = section(tmp_path, train=[("a b " * 17, "c d"), ("", "")]).replace(max_length=4)
    with refused(
        f"The train split of `data`: {data.train_source} and {data.train_target} must have at least one line with 1 to 64 characters (16 for each "
        "token of `data.max_length`), but all 2 lines are longer or empty; split the lines, or raise `data.max_length`."
    ):
        load(data, tmp_path)


def test_the_digest_of_a_stream_is_that_of_its_texts(tmp_path):
    corpus = load(section(tmp_path, train=[("a", "b")]).replace(streaming=True), tmp_path)
    assert corpus.digest == corpus_digest(corpus.texts["train"])


@pytest.mark.parametrize("num_proc", [None, 2])
def test_a_full_disk_is_one_sentence_that_names_the_folder(tokenizer, tmp_path, monkeypatch, num_proc):
    def write_table(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    sentence = (
        r"'{}' could not be written: No space left on device \([\d,]+ MiB are free there\); free disk space, or set "
        r"HF_DATASETS_CACHE to a folder with more space\."
    )
    paths = aligned(tmp_path, *zip(*RAW, strict=True))
    pairs = load_pairs(PairSource(**paths))
    monkeypatch.setattr("datasets.arrow_writer.ArrowWriter.write_table", write_table)
    with pytest.raises(OSError) as caught:
        prepare(tokenizer, pairs, num_proc=num_proc)
    assert re.fullmatch(sentence.format(Path(pairs.cache_files[0]["filename"]).parent), str(caught.value))
    os.utime(paths["source_file"], ns=(1, 1))
    with pytest.raises(OSError) as caught:
        load_pairs(PairSource(**paths))
    assert re.fullmatch(sentence.format(tmp_path / "cache"), str(caught.value))


def test_a_language_may_be_called_translation():
    rows = [{"text": "one", "translation": "eins"}]
    assert read(dataset=rows, source_language="text", target_language="translation") == [("one", "eins")]


def test_a_dataset_whose_card_is_damaged(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"translation": {"en": "one", "de": "eins"}}\n')
    (folder / "README.md").write_text("---\nlicense: [mit\nconfigs: {\n---\n")
    data = {"source_language": "en", "target_language": "de", "dataset": str(folder)}
    recipe = loaded_recipe(tmp_path / "recipe.yaml", data=data)
    with refused(
        f"the card (README.md) of the dataset '{folder}' must begin with YAML between two lines of ---, but the YAML is "
        "damaged; correct the card, or choose another `data.dataset_revision`."
    ):
        recipe.make_task().load_split("train")
