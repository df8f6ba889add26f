"""Load the checkpoint of `make quickstart`, and translate the examples of the manual and every number below
10,000.
"""

import json
import sys
from pathlib import Path
from typing import Any

import vaswani_hf  # noqa: F401  (registers the model and the translation pipeline)

# isort: split
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_hf.data.toy_corpora import english_words, german_words, number_pairs
from vaswani_hf.evaluation.bleu import exact_match_by
from vaswani_hf.recipe import load_recipe
from vaswani_hf.translation import Translator

# The numbers that README and the quick start of the manual translate with the checkpoint of `make
# quickstart`.
EXAMPLES = (312, 7, 702, 86_000, 80_007, 90, 70, 2, 471_005)
# The script translates all numbers below END. Most numbers below END are not in the training corpus.
END = 10_000
# The smallest acceptable exact match, in percent.
MIN_EXACT_MATCH = 99.5


def main(checkpoint: str) -> None:
    """Print scores and translations of a checkpoint folder. Exit with code 1 if translations are wrong."""
    test = json.loads((Path(checkpoint) / "results.json").read_text(encoding="utf-8"))["test"]
    print(f"held-out numbers: BLEU {test['bleu']:.2f}, exact match {test['exact_match']:.1f} %")
    remedy = f"remove '{checkpoint}' and run `make quickstart` again"
    translate_examples(checkpoint, remedy)
    exact_match = translate_all(checkpoint)
    if exact_match < MIN_EXACT_MATCH:
        sys.exit(
            f"At least {MIN_EXACT_MATCH} % of the numbers below {END:,} must be translated correctly, but "
            f"'{checkpoint}' translates {exact_match:.2f} % correctly; {remedy}."
        )


def translate_examples(checkpoint: str, remedy: str) -> None:
    """Translate EXAMPLES with the pipeline of transformers, as a user does."""
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    print(f"loaded {type(model).__name__} with {model.num_parameters():,} parameters from {checkpoint}")
    translator = pipeline("translation", model=model, tokenizer=AutoTokenizer.from_pretrained(checkpoint))
    for number in EXAMPLES:
        source = english_words(number)
        target = german_words(number)
        translation = translator(source)[0]["translation_text"]
        print(f"{source} -> {translation}")
        if translation != target:
            outcome = f"but is '{translation}' with '{checkpoint}'"
            sys.exit(f"The translation of '{source}' must be '{target}', {outcome}; {remedy}.")


def translate_all(checkpoint: str) -> float:
    """Translate all numbers below END. Print the exact match (in percent) for each number of digits,
    separately for numbers in the training corpus and for new numbers. Return the exact match of all numbers.
    """
    recipe = load_recipe(f"{checkpoint}/recipe.yaml")
    data: Any = recipe.data
    pairs = number_pairs(data.numbers_train_size, recipe.seed, "train")
    trained_on = {pair["source"] for pair in pairs}
    sources = [english_words(number) for number in range(END)]
    targets = [german_words(number) for number in range(END)]
    translations = list(Translator.from_pretrained(checkpoint).translate(sources))
    groups = [(len(str(number)), source not in trained_on) for number, source in enumerate(sources)]
    for (digits, is_new), row in exact_match_by(groups, translations, targets).items():
        kind = "not trained on" if is_new else "trained on"
        group = f"{row['sentences']:,} numbers of length {digits}, {kind}"
        print(f"{group}: exact match {row['exact_match']:.2f} %")
    return exact_match_by(["all"] * END, translations, targets)["all"]["exact_match"]


if __name__ == "__main__":
    main(*sys.argv[1:])
