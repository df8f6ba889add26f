"""Load a checkpoint as any user would, and translate README's examples and every number below 10,000."""

import json
import operator
import sys
from pathlib import Path

import vaswani_hf  # noqa: F401  (registers the model and the translation pipeline)

# isort: split
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_hf.data.number_words import english_words, german_words, num_digits, number_pairs
from vaswani_hf.evaluation.bleu import exact_match_by
from vaswani_hf.recipe import load_recipe
from vaswani_hf.translation import Translator

# Those that README translates with this checkpoint.
EXAMPLES = (312, 7, 86_000, 80_007, 90, 70, 2, 471_005)
# Of the numbers below this one, most of which were not trained on, at least so many must be right (percent).
END, LEAST_EXACT_MATCH = 10_000, 99.5


def main(checkpoint: str) -> None:
    """Print the scores of the run and some translations; ends with a sentence and exit code 1 if these are not right.

    Args:
        checkpoint (str): The folder of the trained checkpoint.
    """
    test = json.loads((Path(checkpoint) / "results.json").read_text(encoding="utf-8"))["test"]
    print(f"held-out numbers: BLEU {test['bleu']:.2f}, exact match {test['exact_match']:.1f} %")
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    print(f"loaded {type(model).__name__} with {model.num_parameters():,} parameters from {checkpoint}")
    translator = pipeline("translation", model=model, tokenizer=AutoTokenizer.from_pretrained(checkpoint))
    again = f"remove '{checkpoint}' and run `make quickstart` again"
    for source, target in ((english_words(number), german_words(number)) for number in EXAMPLES):
        translation = translator(source)[0]["translation_text"]
        print(f"{source} -> {translation}")
        if translation != target:
            sys.exit(f"'{source}' must become '{target}', but '{checkpoint}' makes '{translation}' of it; {again}.")
    recipe = load_recipe(f"{checkpoint}/recipe.yaml")
    pairs = number_pairs(recipe.data.numbers_train_size, recipe.seed, "train")
    trained_on = {pair["source"] for pair in pairs}
    sources, targets = ([words(number) for number in range(END)] for words in (english_words, german_words))
    translations = list(Translator.from_pretrained(checkpoint).translate(sources))
    groups = [(num_digits(source), source not in trained_on) for source in sources]
    for (digits, is_new), row in exact_match_by(groups, translations, targets).items():
        kind = "not trained on" if is_new else "trained on"
        print(f"{row['sentences']:,} numbers of length {digits}, {kind}: exact match {row['exact_match']:.2f} %")
    exact_match = 100 * sum(map(operator.eq, translations, targets)) / len(targets)
    if exact_match < LEAST_EXACT_MATCH:
        sys.exit(
            f"Of the numbers below {END:,} at least {LEAST_EXACT_MATCH} % must be translated right, but '{checkpoint}' "
            f"does {exact_match:.2f} %; {again}."
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
