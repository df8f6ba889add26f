"""Print random trees, one per line, of the grammar that generates the training corpus of
`configuration/parsing.yaml`.
"""

import argparse
import signal

from vaswani_hf.data.toy_corpora import grammar_trees


def main() -> None:
    """Print the trees. Trees of the splits "validation" and "test" never occur in a training corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, help="the number of trees")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random trees; default: 1")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="the split of the trees; default: test",
    )
    arguments = parser.parse_args()
    # Set the default action of SIGPIPE, so that `python quick_trees.py 1000 | head` ends without a traceback.
    signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)
    for tree in grammar_trees(arguments.number, arguments.seed, arguments.split):
        print(tree)


if __name__ == "__main__":
    main()
