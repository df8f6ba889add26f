"""The HTTP interface: LibreTranslate, `/v1/translations`, limits, and clients that misbehave."""

import gzip
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import factories
import pytest
import torch
from sentences import refused
from test_engine import Recorded, wait_until

from vaswani_hf import Translator, VaswaniForSeq2SeqLM
from vaswani_hf.markup import translate_markup
from vaswani_hf.model.glossary_vaswani import read_glossary
from vaswani_hf.model.tokenizing_vaswani import LANGUAGE_TOKENS
from vaswani_hf.serving.schema import TranslationsRequest
from vaswani_hf.serving.service import Service

LINES = ["der Hund läuft.", "zwei nein\nÖl", "  3. Mai ", "weiß größer. eins", "ja? nein", "日本"]


def translate(client, **fields):
    return client.post("/translate", json={"source": "en", "target": "de"} | fields)


def events_of(answer) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]


def test_the_client_of_libretranslate(client):
    api = pytest.importorskip("libretranslatepy").LibreTranslateAPI(str(client.base_url))
    assert api.translate("der Hund", "en", "de", timeout=60) == "der Hund"
    assert api.languages(timeout=60) == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert api.detect("der Hund", timeout=60) == [{"confidence": 0.0, "language": "en"}]


@pytest.mark.parametrize("q", ["Öl läuft", ["Öl", "eins", "Öl"]], ids=["text", "list"])
def test_each_form_of_a_request(client, q):
    fields = {"q": q, "source": "en", "target": "de", "secret": "", "format": "text"}
    pairs = [("q", text) for text in ([q] if isinstance(q, str) else q)]
    pairs += [(name, value) for name, value in fields.items() if name != "q"]
    for request in (
        {"json": fields},
        {"data": fields},
        {"params": fields},
        {"files": [(name, (None, value)) for name, value in pairs]},
        # curl -d sends characters that are not percent-encoded.
        {"content": "&".join(f"{name}={value}" for name, value in pairs).encode()},
    ):
        answer = client.post("/translate", **request)
        assert (answer.status_code, answer.json()) == (200, {"translatedText": q})


def test_a_repeated_field(client):
    answer = client.post("/translate", data={"q": "x", "source": ["en", "de"], "target": "de"})
    expected = "`source` must be text, but is ['en', 'de']."
    assert (answer.status_code, answer.json()) == (400, {"error": expected})
    # The field of the body replaces the field of the query.
    query = {"q": ["Öl", "eins"], "source": "en", "target": "de"}
    answer = client.post("/translate", params=query, data={"q": "nein"})
    assert answer.json() == {"translatedText": "nein"}


def test_a_list_auto_and_alternatives(client):
    answer = translate(client, q=["eins", "", "Öl"], source="auto", alternatives=2).json()
    assert answer["translatedText"] == ["eins", "", "Öl"]
    assert answer["detectedLanguage"] == [{"confidence": 0.0, "language": "en"}] * 3
    assert [len(others) for others in answer["alternatives"]] == [2, 0, 2]
    single = translate(client, q="eins", alternatives=9).json()
    assert len(single["alternatives"]) == 9
    assert "eins" not in single["alternatives"]


@pytest.mark.parametrize("text", [" \n ", "🎉 !", "&"])
def test_a_text_without_letters_is_returned(client, text):
    assert translate(client, q=text).json() == {"translatedText": text}
    with client.stream("POST", "/v1/translations", json={"text": text, "stream": True}) as answer:
        assert events_of(answer)[-1]["translations"] == [{"text": text}]


def test_a_text_without_letters_has_the_fields_of_other_texts(client):
    fields = {"text": ["", "🎉", "eins"], "scores": True, "alignments": True}
    answer = client.post("/v1/translations", json=fields).json()
    blank, emoji, text = answer["translations"]
    assert blank.keys() == emoji.keys() == text.keys() >= {"score", "alignment"}
    answer = client.post("/v1/translations", json={"text": ["", "eins"]}).json()
    assert answer["translations"] == [{"text": ""}, {"text": "eins"}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Invalid request: missing q parameter"),
        ({"q": ""}, "Invalid request: missing q parameter"),
        ({"q": "x", "source": None}, "Invalid request: missing source parameter"),
        ({"q": "x", "target": "it"}, "en cannot be translated to it; the target languages of en are de."),
        ({"q": 5}, "`q` must be text or a list, but is 5."),
        ({"q": ["x", 5]}, "`q[1]` must be text, but is 5."),
        ({"q": "x", "alternatives": "x"}, "`alternatives` must be an integer, but is 'x'."),
        ({"q": "x", "alternatives": 10}, "`alternatives` must be at most 9, but is 10."),
        ({"q": "x", "alternatives": -1}, "`alternatives` must be 0 or more, but is -1."),
        ({"q": "x", "alternatives": True}, "`alternatives` must be a number, but is true."),
        ({"q": "x", "min_confidence": True}, "`min_confidence` must be a number, but is true."),
        ({"q": "x", "min_confidence": 1.5}, "`min_confidence` must be 1 or less, but is 1.5."),
        ({"q": "x", "format": "pdf"}, "`format` must be 'text', 'html' or 'template', but is 'pdf'."),
        ({"q": "x", "glossary": "a"}, "`glossary` is 'a', but the service has no glossary; leave"),
        ({"q": "x", "min_confidence": 0.5}, "`min_confidence` needs the calibration of the checkpoint, but"),
    ],
    ids=str,
)
def test_wrong_fields(client, fields, message):
    answer = translate(client, **fields)
    assert answer.status_code == 400 and answer.json()["error"].startswith(message)


@pytest.mark.parametrize(
    ("q", "status", "message"),
    [
        (None, 400, "Invalid request: missing q parameter"),
        ([["x"]], 400, "`q[0]` must be text, but is ['x']."),
        (["x"] * 501, 413, "A request may have at most 500 texts, but has 501; divide the request."),
    ],
    ids=["missing", "nested", "too many"],
)
def test_wrong_texts_to_detect(client, q, status, message):
    answer = client.post("/detect", json={"q": q})
    assert (answer.status_code, answer.json()) == (status, {"error": message})


def test_a_prefix_that_is_too_long_is_not_in_the_log(client, copier, monkeypatch):
    """The tokenizer records each warning that it writes to the log."""
    monkeypatch.setattr(copier.target_tokenizer, "model_max_length", 8)
    monkeypatch.setattr(copier.target_tokenizer, "deprecation_warnings", {})
    fields = {"text": "Hund", "target_prefix": "der Hund läuft " * 4}
    answer = client.post("/v1/translations", json=fields).json()
    assert answer["translations"][0]["text"].startswith("der Hund läuft der")
    assert not copier.target_tokenizer.deprecation_warnings


def test_unknown_paths_and_methods(client):
    assert (client.get("/nothing").status_code, client.get("/translate").status_code) == (404, 405)
    assert client.get("/nothing").json() == {"error": "Not Found"}
    # The pages of FastAPI load scripts from other servers.
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_browsers_may_call_the_service_from_other_pages(client):
    headers = {"Origin": "https://example.org"}
    for answer in (client.get("/languages", headers=headers), client.post("/translate", headers=headers)):
        assert answer.headers["access-control-allow-origin"] == "*"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = client.options("/translate", headers=headers | asked)
    assert (answer.status_code, answer.headers["access-control-allow-headers"]) == (200, "content-type")


def test_the_page_needs_no_other_server(client):
    page = client.get("/").text
    assert "<textarea" in page
    assert "//" not in page.replace("<!DOCTYPE html>", "")
    # Without this line, a browser requests /favicon.ico, and the console shows an error.
    assert '<link rel="icon" href="data:,">' in page


@pytest.mark.parametrize("path", ["/", "/health", "/languages", "/frontend/settings", "/metrics"])
def test_a_head_request_has_the_status_of_a_get_request_and_no_body(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == client.get(path).headers["content-type"]


def test_the_description_for_openapi_causes_no_warning(client, recwarn):
    assert client.get("/openapi.json").status_code == 200
    assert not recwarn.list


@pytest.mark.parametrize("path", ["/translate", "/v1/translations", "/detect"])
def test_a_compressed_body_is_refused_in_a_sentence(client, path):
    body = gzip.compress(b'{"q": "eins", "source": "en", "target": "de"}')
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = client.post(path, content=body, headers=headers)
    message = "The body must not be compressed, but the header `Content-Encoding` is gzip; send the body"
    assert answer.status_code == 415 and answer.json()["error"].startswith(message)


def test_health_and_settings(client):
    assert client.get("/health").json() == {"status": "ok"}
    settings = client.get("/frontend/settings").json()
    expected = {"charLimit": 20_000, "keyRequired": False, "filesTranslation": False}
    assert expected.items() <= settings.items()
    assert settings["language"]["target"] == {"code": "de", "name": "German"}


def test_v1_translations(client, copier):
    fields = {"text": LINES, "target_language": "de", "scores": True, "alignments": True, "alternatives": 1}
    answer = client.post("/v1/translations", json=fields).json()
    assert (answer["source_language"], answer["target_language"]) == ("en", "de")
    options = {"num_return_sequences": 2, "num_beams": 4, "return_scores": True, "return_alignments": True}
    expected = list(copier.translate(LINES, split_sentences=True, **options))
    for ours, other in zip(answer["translations"], expected, strict=True):
        assert (ours["text"], ours["alignment"]) == (other.text, other.alignment)
        assert ours["score"] == pytest.approx(other.score, abs=1e-4)
        assert [word["word"] for word in ours["words"]] == [word.word for word in other.words]
        assert ours["words"][0]["confidence"] == pytest.approx(other.words[0].confidence, abs=1e-4)
        (alternative,) = ours["alternatives"]
        assert alternative["text"] == other.alternatives[0].text


def test_v1_constraints(client):
    fields = {"text": "der Hund", "target_prefix": "Öl", "must_contain": ["weiß"]}
    (translation,) = client.post("/v1/translations", json=fields).json()["translations"]
    assert translation["text"].startswith("Öl")
    assert "weiß" in translation["text"]
    assert "unmet_phrases" not in translation


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "`text` must be given, but is missing."),
        ({"text": "x", "scores": "yes"}, "`scores` must be true or false, but is 'yes'."),
        ({"text": "x", "alternatives": True}, "`alternatives` must be an integer, but is true."),
        ({"text": "x", "targt_language": "de"}, "`targt_language` is not a key, but is set to 'de'; the"),
        ({"text": "x", "must_contain": [" "]}, "A phrase of `must_contain` must not be blank, but is ' '."),
        ({"text": "x", "must_contain": ["y"] * 21}, "`must_contain` must be a list of at most 20, but is ["),
        ({"text": "x", "format": "html", "scores": True}, "`scores` must be left out with `format` html."),
        ({"text": ["x"], "stream": True}, "`text` must be a single text if `stream` is true, but is a list."),
        ({"text": "x", "stream": True, "alternatives": 1}, "`stream` cannot be used together with `alter"),
        ({"text": "x", "stream": True, "glossary": "a"}, "`stream` cannot be used together with `alter"),
    ],
    ids=str,
)
def test_wrong_v1_fields(client, fields, message):
    answer = client.post("/v1/translations", json=fields)
    assert answer.status_code == 400 and answer.json()["error"].startswith(message)


def test_a_new_field_is_refused_with_documents_until_the_list_has_it():
    class WiderRequest(TranslationsRequest):
        new: bool = False

    for format, is_new in (("text", True), ("html", False)):
        WiderRequest.load({"text": "x", "format": format, "new": is_new})
    with refused("`new` must be left out with `format` html."):
        WiderRequest.load({"text": "x", "format": "html", "new": True})


def test_documents(client, copier):
    documents = ['<p>der <b>Hund</b> läuft.</p><p title="Öl">zwei &amp; nein</p>', "eins &lt; <i>ja?</i>"]
    documents.append("\ufeffder <b>Hund</b>\r\nläuft.")

    def copy(sentences):
        return copier.translate(sentences, return_alignments=True)

    found = translate(client, q=documents, format="html", alternatives=2).json()
    assert found["translatedText"] == [translate_markup(document, "html", copy) for document in documents]
    assert found["alternatives"] == [[], [], []]
    answer = client.post("/v1/translations", json={"text": documents[0], "format": "html"}).json()
    assert answer["translations"] == [{"text": found["translatedText"][0]}]
    template = "der {n} & <b>Hund</b>"
    found = translate(client, q=template, format="template").json()
    assert found == {"translatedText": translate_markup(template, "template", copy)}
    assert translate(client, q="&amp;").json()["translatedText"] == next(copier.translate(["&amp;"]))


def test_glossaries(serve, tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text(f"hund\tÖl\nStraße\t{'nein ' * 80}\n", encoding="utf-8")
    client = serve(glossaries={"terms": read_glossary(str(path))})
    assert "Öl" not in translate(client, q="der Hund").json()["translatedText"]
    assert "Öl" in translate(client, q="der Hund", glossary="terms").json()["translatedText"]
    found = translate(client, q="der <b>Hund</b>", glossary="terms", format="html").json()["translatedText"]
    assert "Öl" in found and "<b>" in found
    # The target term of "Straße" is too long for the search.
    for document_format in ("text", "html"):
        answer = translate(client, q="Hund Straße", glossary="terms", format=document_format)
        assert "Öl" in answer.json()["translatedText"]
    answer = client.post("/v1/translations", json={"text": "Hund", "glossary": "other"})
    expected = "`glossary` must be a glossary of the service (terms), but is 'other'."
    assert (answer.status_code, answer.json()) == (400, {"error": expected})


def test_min_confidence(serve, copier, monkeypatch):
    """A confidence of 0.4 for each translation."""
    monkeypatch.setattr(copier, "calibration", lambda translation: 0.4)
    client = serve()

    def translate_v1(**fields):
        return client.post("/v1/translations", json={"text": "eins"} | fields)

    found = translate(client, q=["eins", "Öl"], min_confidence=0.5).json()
    assert found == {"translatedText": ["", ""], "confidence": [0.4, 0.4]}
    found = translate(client, q="<b>eins</b>", min_confidence=0.5, format="html").json()
    assert found == {"translatedText": "<b>eins</b>"}
    error = "the confidence of the translation, 0.400, is below 0.5"
    (withheld,) = translate_v1(min_confidence=0.5).json()["translations"]
    assert withheld == {"text": "", "error": error, "calibrated_confidence": 0.4}
    (shown,) = translate_v1(min_confidence=0.3).json()["translations"]
    assert shown == {"text": "eins", "calibrated_confidence": 0.4}
    answer = translate_v1(min_confidence=0.5, stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("`stream` must be left out with `min_confidence`, because")
    client = serve(options={"min_confidence": 0.5})
    assert translate(client, q="eins").json() == {"translatedText": "", "confidence": 0.4}


def by_first_letter(text):
    """A detector: texts that begin with "e" are English, and all other texts are German."""
    return {"en": 0.95, "de": 0.005} if text.startswith("e") else {"en": 0.005, "de": 0.95}


def test_detected_languages(serve, copier):
    client = serve([("en", "de", copier), ("de", "en", copier)], detector=by_first_letter)
    assert client.post("/detect", json={"q": "nein"}).json() == [
        {"confidence": 95.0, "language": "de"},
        {"confidence": 0.5, "language": "en"},
    ]
    answer = client.post("/v1/translations", json={"text": "nein"}).json()
    assert (answer["source_language"], answer["target_language"]) == ("de", "en")
    found = translate(client, q=["eins", "eins"], source="auto").json()
    assert found["detectedLanguage"] == [{"confidence": 95.0, "language": "en"}] * 2
    # The tags and scripts of a document do not change the language.
    page = "<!DOCTYPE html><script>let one;</script><p class='two'>eins"
    found = translate(client, q=page, source="auto", format="html").json()
    assert found["detectedLanguage"] == {"confidence": 95.0, "language": "en"}
    # A German text cannot be translated to German, so the service reads the text as an English text.
    found = translate(client, q="nein", source="auto").json()
    assert found["detectedLanguage"] == {"confidence": 0.5, "language": "en"}


def test_language_check(serve, copier):
    recorded = Recorded(copier)
    client = serve([("en", "de", recorded)], detector=by_first_letter, language_check="pass", batch_wait=0.2)
    assert translate(client, q=["eins", "nein. ja?"]).json()["translatedText"] == ["eins", "nein. ja?"]
    assert translate(client, q="<p>eins</p><p>nein ja?</p>", format="html").json() == {
        "translatedText": "<p>eins</p><p>nein ja?</p>"
    }
    assert recorded.batches == [["eins"], ["eins"]]
    client = serve(detector=by_first_letter, language_check="refuse")
    for fields in ({"q": ["eins", "nein ja?"]}, {"q": "<p>nein ja?</p>", "format": "html"}):
        answer = translate(client, **fields)
        expected = "The text must be in the language en, but seems to be in the language de."
        assert (answer.status_code, answer.json()) == (400, {"error": expected})
    with pytest.raises(ValueError, match="because the language detector does not know the language 'xx'"):
        serve([("xx", "de", copier)], detector=by_first_letter, language_check="pass")


def test_a_client_cannot_choose_the_language_by_a_tag(serve):
    """The service writes a tag in a text as »en«, so that the tag is ordinary text. The model is random."""
    tokenizer = factories.tiny_tokenizer(vocab_size=290, tags=(">>en<<",))
    torch.manual_seed(0)
    model = VaswaniForSeq2SeqLM(factories.tiny_config(vocab_size=len(tokenizer))).eval()
    both = Translator(model, tokenizer, tokenizer)
    client = serve([("en", "de", both)])
    for source, target, options in (("en", "de", {}), ("de", "en", {"tgt_lang": "en"})):
        answer = translate(client, q=">>en<< one", source=source, target=target).json()
        (expected,) = both.translate(["»en« one"], **options)
        assert answer["translatedText"] == expected
        (obeying,) = both.translate([">>en<< one"])
        assert answer["translatedText"] != obeying


def test_a_model_with_language_tokens_translates(serve):
    tokenizer = factories.tiny_tokenizer()
    tokenizer.init_kwargs[LANGUAGE_TOKENS] = {"en": "x", "de": "y"}
    many = Translator(factories.tiny_model(vocab_size=len(tokenizer)), tokenizer, tokenizer)
    (expected,) = many.translate(["one"], src_lang="en", tgt_lang="de")
    assert translate(serve([("en", "de", many)]), q="one").json() == {"translatedText": expected}


@pytest.mark.parametrize(
    "text", [" der Hund läuft. zwei nein\nÖl ", "ja? nein。eins der。zwei nein。", "ja。😀！nein。😀"]
)
def test_stream(client, copier, text):
    with client.stream("POST", "/v1/translations", json={"text": text, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        *parts, last = events_of(answer)
    (expected,) = copier.translate([text], split_sentences=True, num_beams=1)
    assert "".join(part["text"] for part in parts) == expected
    assert len(parts) > 2
    assert last["translations"] == [{"text": expected}]


def test_an_internal_error_shows_neither_paths_nor_texts(serve, copier, caplog):
    client = serve([("en", "de", Recorded(copier))])
    for fields in ({"q": "bad"}, {"q": "<p>bad</p>", "format": "html"}):
        answer = translate(client, **fields)
        assert (answer.status_code, answer.json()) == (500, {"error": "The translation failed."})
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["A translation failed with RuntimeError."] * 2
    with client.stream("POST", "/v1/translations", json={"text": "bad", "stream": True}) as answer:
        assert events_of(answer) == [{"error": "The translation failed."}]
    assert translate(client, q="eins").json() == {"translatedText": "eins"}


def test_an_unexpected_error_is_json(serve, monkeypatch):
    client = serve()
    monkeypatch.setattr(Service, "check_limits", Mock(side_effect=KeyError("/secret/path")))
    answer = translate(client, q="eins")
    assert (answer.status_code, answer.json()) == (500, {"error": "The translation failed."})


def test_api_key(serve):
    client = serve(api_key="sesame")
    for path in ("/translate", "/v1/translations", "/detect"):
        answer = client.post(path, json={"q": "eins"})
        assert (answer.status_code, answer.json()["error"][:28]) == (403, "The service needs an API key")
        answer = client.post(path, json={"q": "eins", "api_key": "sesam"})
        assert (answer.status_code, answer.json()) == (403, {"error": "Invalid API key"})
    assert translate(client, q="eins", api_key="sesame").json() == {"translatedText": "eins"}
    bearer = {"Authorization": "Bearer sesame"}
    answer = client.post("/v1/translations", json={"text": "eins"}, headers=bearer)
    assert answer.json()["translations"] == [{"text": "eins"}]
    assert client.get("/metrics").status_code == 403
    assert client.get("/metrics", headers=bearer).status_code == 200
    assert client.get("/frontend/settings").json()["keyRequired"]
    assert client.get("/languages").status_code == 200


def test_an_api_key_with_other_letters(serve):
    client = serve(api_key="sésame")
    assert translate(client, q="eins", api_key="sésame").json() == {"translatedText": "eins"}
    for key, status in ((b"s\xc3\xa9same", 200), (b"s\xe9same", 403), (b"s\xc3\xa9sam", 403)):
        headers = [(b"Authorization", b"Bearer " + key)]
        answer = client.post("/v1/translations", json={"text": "eins"}, headers=headers)
        assert answer.status_code == status


def test_metrics(serve):
    client = serve()
    translate(client, q="eins. nein.")
    client.get("/no/such/path")
    metrics = client.get("/metrics").text
    assert 'vaswani_requests_total{path="/translate",status="200"} 1.0' in metrics
    assert 'vaswani_requests_total{path="other",status="404"} 1.0' in metrics
    assert "vaswani_batch_sentences_sum 2.0" in metrics
    assert "vaswani_characters_total 11.0" in metrics
    assert "vaswani_queue_characters 0.0" in metrics
    assert "eins" not in metrics


def test_a_full_queue(serve, copier):
    recorded = Recorded(copier)
    recorded.proceed.clear()
    client = serve([("en", "de", recorded)], max_waiting=5)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(translate, client, q="eins")
        assert recorded.has_begun.wait(60)
        answer = translate(client, q="nein")
        recorded.proceed.set()
        assert first.result(60).json() == {"translatedText": "eins"}
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json() == {"error": "The queue of the service is full; send the request again later."}


def test_a_request_that_takes_too_long_leaves_the_queue(serve, copier):
    recorded = Recorded(copier)
    recorded.proceed.clear()
    client = serve([("en", "de", recorded)], timeout=0.2)
    expected = "The request took longer than 0.2 seconds; send a shorter text."
    for fields in ({"q": "eins"}, {"q": "<p>eins</p>", "format": "html"}):
        answer = translate(client, **fields)
        assert (answer.status_code, answer.json()) == (503, {"error": expected})
        wait_until(lambda: client.service.engine.num_waiting_characters == 0)
    with client.stream("POST", "/v1/translations", json={"text": "eins", "stream": True}) as answer:
        assert events_of(answer)[-1] == {"error": expected}
    recorded.proceed.set()


def raw_request(client, fields: dict) -> socket.socket:
    """Send a request, and return the connection without reading the answer."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)
    body = json.dumps(fields).encode()
    head = f"POST /v1/translations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_the_request_of_a_client_that_leaves_leaves_the_queue(serve, copier, stream):
    recorded = Recorded(copier)
    recorded.proceed.clear()
    client = serve([("en", "de", recorded)])
    connection = raw_request(client, {"text": "eins. nein.", "stream": stream})
    assert recorded.has_begun.wait(60)
    assert client.service.engine.num_waiting_characters == 11
    connection.close()
    wait_until(lambda: client.service.engine.num_waiting_characters == 0)
    recorded.proceed.set()
    assert translate(client, q="Öl").json() == {"translatedText": "Öl"}


def test_requests_of_many_clients_get_their_own_translations(serve, copier):
    """Requests with different options and texts at the same time."""
    recorded = Recorded(copier)
    recorded.proceed.clear()
    client = serve([("en", "de", recorded)], batch_wait=0.02)
    texts = [f"{line} {other}" for line in LINES for other in LINES]
    expected = list(copier.translate(texts, split_sentences=True))

    def ask(number: int) -> str:
        fields = {"text": texts[number], "scores": number % 2 == 0}
        return client.post("/v1/translations", json=fields).json()["translations"][0]["text"]

    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(ask, range(len(texts)))
        # The first batch waits until 16 requests are in the queue, so that the next batches are shared.
        wait_until(lambda: client.service.engine.num_waiting_characters >= sum(map(len, texts[:16])))
        recorded.proceed.set()
        assert list(answers) == expected
    assert len(recorded.batches) < len(texts)
