"""Trees of the grammar that the quick recipe of a parser is trained on, one a line."""

import argparse

from vaswani_hf.data.tree_grammar import grammar_trees


def main() -> None:
    """Print the trees; those of the splits "validation" and "test" are in no training corpus, whatever the seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="another one draws others (1)")
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test", help="(test)")
    arguments = parser.parse_args()
    for tree in grammar_trees(arguments.number, arguments.seed, arguments.split):
        print(tree)


if __name__ == "__main__":
    main()
