"""`vaswani translate --input_format html` and its errors."""

import gzip
import json
import re
import shutil

import pytest


def test_a_document_is_translated(vaswani, copier_checkpoint, tmp_path):
    source, target = tmp_path / "in.html", tmp_path / "out.html"
    source.write_bytes("\ufeff<p>der <b>Hund</b></p>\r\n<pre>x  y</pre>".encode())
    argv = ["translate", copier_checkpoint, "--input", source, "--input_format", "html", "--output", target]
    assert vaswani(*argv)[0] == 0
    found = target.read_bytes().decode()
    assert re.fullmatch("\ufeff<p>.*<b>.*</b>.*</p>\r\n<pre>x  y</pre>", found)
    code, _, sentence = vaswani(*argv)
    # `--resume` cannot continue a document.
    assert code == 2 and sentence.rstrip().endswith("exists; give another name.")
    assert target.read_bytes().decode() == found


@pytest.mark.parametrize(
    ("format", "document", "encoding"),
    [
        ("html", '<meta name=a charset="iso-8859-1"><p id="charset=a">läuft</p>', "iso-8859-1"),
        ("html", "<META content='text/html; charset=ascii'><p>läuft</p>", "ascii"),
        ("html", "<meta charset=utf-8><p>läuft</p><!-- <meta charset=ascii> -->", None),
        ("po", 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=CHARSET\\n"\n', "CHARSET"),
        ("markdown", "<meta charset=ascii>\n", None),
    ],
)
def test_the_written_encoding_is_declared(vaswani, copier_checkpoint, tmp_path, format, document, encoding):
    (tmp_path / "in.gz").write_bytes(gzip.compress(document.encode()))
    argv = ["translate", copier_checkpoint, "--input", tmp_path / "in.gz", "--input_format", format]
    code, found, _ = vaswani(*argv)
    assert code == 0
    assert found == document.replace(encoding or " ", "UTF-8" if encoding else " ")


def test_bad_documents_are_one_sentence(vaswani, copier_checkpoint, tmp_path):
    source = tmp_path / "in.srt"
    source.write_text("1\n00:00 --> b\none\n\n")
    argv = ["translate", copier_checkpoint, "--input", source, "--input_format", "srt"]
    code, out, sentence = vaswani(*argv)
    assert (code, out) == (1, "") and "SubRip" in sentence
    code, _, sentence = vaswani(*argv, "--json")
    assert code == 2 and "one document" in sentence
    source.write_bytes(b"\xff")
    code, _, sentence = vaswani(*argv)
    assert code == 1 and "UTF-8" in sentence


def test_sentences_with_low_confidence_stay(vaswani, copier_checkpoint, tmp_path, caplog):
    """The calibration expects that a translation with fewer than four tokens is bad. The attribute and
    the paragraph are translated in separate calls.
    """
    folder = tmp_path / "model"
    shutil.copytree(copier_checkpoint, folder)
    (folder / "calibration.json").write_text(json.dumps({"weights": [-4, 0, 0, 3]}))
    argv = ["translate", folder, "--input_format", "html", "--min_confidence", "0.5", "--text"]
    code, out, _ = vaswani(*argv, '<img alt="der"><p>eins zwei drei</p>')
    assert code == 0 and re.fullmatch('<img alt="der"><p>.*</p>\n', out)
    assert caplog.messages[-1] == "vaswani: 1 of 2 lines were skipped"
    code, out, sentence = vaswani(*argv, "<p>der</p>")
    assert (code, out) == (2, "") and "All lines were skipped, 1 of 1" in sentence
