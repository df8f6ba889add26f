"""Load a checkpoint as any user would and translate three numbers that it has not been trained on."""

import json
import sys
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import vaswani_hf  # noqa: F401  (registers the model and the translation pipeline)
from vaswani_hf.data.number_words import number_pairs


def main(checkpoint: str) -> None:
    """Print the scores of the run and three translations.

    Args:
        checkpoint (str): The folder of the trained checkpoint.
    """
    test = json.loads((Path(checkpoint) / "results.json").read_text(encoding="utf-8"))["test"]
    print(f"held-out numbers: BLEU {test['bleu']:.2f}, exact match {test['exact_match']:.1f} %")
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    print(f"loaded {type(model).__name__} with {model.num_parameters():,} parameters from {checkpoint}")
    translator = pipeline("translation", model=model, tokenizer=AutoTokenizer.from_pretrained(checkpoint))
    for pair in number_pairs(3, seed=2, split="test"):
        translation = translator(pair["source"])[0]["translation_text"]
        print(f"{pair['source']} -> {translation} ({'correct' if translation == pair['target'] else 'wrong'})")


if __name__ == "__main__":
    main(*sys.argv[1:])
