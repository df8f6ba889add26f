"""Many threads with one translator, model or pipeline get the results of a single thread."""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import GenerationConfig, TextIteratorStreamer, pipeline

from vaswani_hf.translation import Translator

NUM_THREADS, NUM_CALLS = 8, 80
TEXTS = ["eins zwei", "der Hund läuft über die", "ja? nein", "Mr. 3. Mai drei!"]


def calls_of(translator, pipe, ensembled):
    """Return functions without arguments that use the translator, the pipeline and the model in many ways."""
    model, tokenizer = translator.model, translator.source_tokenizer
    batches = [tokenizer(texts, return_tensors="pt", padding=True) for texts in (TEXTS[:2], TEXTS[2:])]
    config = GenerationConfig(num_beams=2, length_penalty=0.5, num_return_sequences=2)

    def translated(texts, by=translator, **options):
        return lambda: [repr(found) for found in by.translate(texts, num_beams=2, **options)]

    def generated(batch, **options):
        def call():
            outputs = model.generate(**batch, **options)
            return (outputs if isinstance(outputs, torch.Tensor) else outputs.sequences_scores).tolist()

        return call

    def streamed(text):
        def call():
            streamer = TextIteratorStreamer(tokenizer, skip_special_tokens=True)
            list(translator.translate([text], num_beams=1, streamer=streamer))
            return list(streamer)

        return call

    calls = [streamed(text) for text in TEXTS[:2]]
    for texts in (TEXTS, TEXTS[1:3]):
        calls += [
            translated(texts),
            translated(texts, coverage_penalty=0.4, return_scores=True),
            translated(texts, target_prefixes=["Hund", *[None] * (len(texts) - 1)]),
            translated(texts, must_contain=[["weiß"], *[None] * (len(texts) - 1)], return_scores=True),
            translated(texts, split_sentences=True, return_alignments=True),
            translated(texts, by=ensembled, return_scores=True),
            # Tokenizers store their truncation setting, so this call could change the calls of other threads.
            translated(texts, tokenize={"truncation": True, "max_length": 4}),
            lambda texts=texts: list(map(repr, translator.score(texts, texts, coverage_penalty=0.7))),
            translated(texts, generation_config=config, return_scores=True),
            lambda texts=texts: repr(pipe(texts, truncation=True, num_beams=2, num_return_sequences=2)),
        ]
    for batch in batches:
        beams = {"num_beams": 3, "max_new_tokens": 8}
        outputs = {"return_dict_in_generate": True, "output_scores": True}
        calls += [
            generated(batch, **beams, **outputs, coverage_penalty=0.3),
            generated(batch, **beams, length_penalty_type="gnmt", max_length_a=1, max_length_b=2),
            generated(batch, **beams, no_repeat_ngram_size=2, min_new_tokens=4),
            generated(batch, num_beams=1, repetition_penalty=1.3),
            generated(batch, **beams, ensemble=[model]),
        ]
    return calls


def test_every_answer_is_the_one_alone(copier):
    torch.manual_seed(0)
    other = type(copier.model)(copier.model.config).eval()
    tokenizers = (copier.source_tokenizer, copier.target_tokenizer)
    translator = Translator(copier.model, *tokenizers)
    ensembled = Translator(copier.model, *tokenizers, ensemble=[other])
    pipe = pipeline("translation", model=copier.model, tokenizer=tokenizers[0], device="cpu")
    calls = calls_of(translator, pipe, ensembled)
    alone = [call() for call in calls]
    # More than three quarters of the answers differ, so the test can detect exchanged answers.
    assert len({repr(answer) for answer in alone}) > 0.75 * len(calls)
    order = list(itertools.islice(itertools.cycle(range(len(calls))), NUM_CALLS))
    random.Random(0).shuffle(order)
    begin = threading.Barrier(NUM_THREADS)

    def work(numbers):
        begin.wait()
        return [(number, calls[number]()) for number in numbers]

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        results = list(pool.map(work, [order[i::NUM_THREADS] for i in range(NUM_THREADS)]))
    answers = [answer for of_thread in results for answer in of_thread]
    assert len(answers) == NUM_CALLS
    wrong = {number for number, answer in answers if answer != alone[number]}
    assert not wrong, f"{len(wrong)} of {len(calls)} kinds of calls have another answer: {sorted(wrong)}"


@pytest.mark.parametrize("name", ["source_tokenizer", "target_tokenizer"])
def test_a_tokenizer_is_left_as_it_was(copier, name):
    backend = getattr(copier, name).backend_tokenizer
    # An earlier test of this session may have called the tokenizer with truncation.
    backend.no_truncation()
    backend.no_padding()
    list(copier.translate(TEXTS, num_beams=1))
    list(copier.score(TEXTS, TEXTS))
    assert (backend.truncation, backend.padding) == (None, None)
