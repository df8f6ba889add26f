"""Trains memory networks (Sukhbaatar et al. 2015) that use the attention of this package.

Run `python scripts/examples/memory_network.py [--hops 1 2 3]`. Questions are the queries of the attention,
and statements are the keys and values. The script generates stories about people, places, things and colours.
The answer to a question depends on one, two or three statements of the story. The script trains a network for
each number of hops. For each network, the script prints three accuracies on held-out stories: for answers
that depend on one, on two and on three statements. The script also prints one story with the attention
weights of its statements. In shapes, B is the number of questions, S the number of statements, J the number
of words and D the width.
"""

import argparse
import random
from collections.abc import Sequence

import torch
from torch import nn

from vaswani_hf import VaswaniConfig
from vaswani_hf.model.attention_vaswani import VaswaniAttention

PEOPLE, THINGS = "mary john sandra daniel".split(), "apple football milk book".split()
PLACES, COLOURS = "kitchen garden office hallway bedroom bathroom".split(), "red green blue white".split()
WORDS = [
    "",
    *PEOPLE,
    *THINGS,
    *PLACES,
    *COLOURS,
    *"went to the dropped is where what who colour thing".split(),
]
STATEMENTS, SENTENCE, WIDTH = 10, 5, 64
TRAINING, HELD_OUT, EPOCHS, BATCH, RATE = 5000, 1000, 8, 32, 2e-3
# A tuple of statements, and a list of tuples (question, answer, number of statements that the answer depends
# on).
Story = tuple[tuple[str, ...], list[tuple[str, str, int]]]


def story_of(draw: random.Random) -> Story:
    """Generate a random story: statements, oldest first, and up to three questions. The answer to one
    question depends on one statement, the answer to another question on two statements, and the answer to the
    third question on three statements.
    """
    told: list[str] = []
    where: dict[str, str] = {}
    colours: dict[str, str] = {}
    dropped: dict[str, tuple[str, str]] = {}
    while len(told) < STATEMENTS:
        person, thing, place, colour = (draw.choice(names) for names in (PEOPLE, THINGS, PLACES, COLOURS))
        kind = draw.choice(("went", "went", "dropped", "is"))
        if kind == "went" and where.get(person) != place:
            where[person] = place
            told.append(f"{person} went to the {place}")
        elif kind == "dropped" and thing not in dropped and person in where:
            dropped[thing] = (person, where[person])
            told.append(f"{person} dropped the {thing}")
        elif kind == "is" and thing not in colours and colour not in colours.values():
            colours[thing] = colour
            told.append(f"the {thing} is {colour}")
    one = [(f"where is {person}", place, 1) for person, place in where.items()]
    one += [(f"who dropped the {thing}", person, 1) for thing, (person, _) in dropped.items()]
    one += [(f"what colour is the {thing}", colour, 1) for thing, colour in colours.items()]
    two = [(f"where is the {thing}", place, 2) for thing, (_, place) in dropped.items()]
    three = [
        (f"where is the {colours[it]} thing", place, 3) for it, (_, place) in dropped.items() if it in colours
    ]
    return tuple(told), [draw.choice(some) for some in (one, two, three) if some]


def make_stories(seed: int) -> tuple[list[Story], list[Story]]:
    """Generate random stories without duplicates. Return the training stories and the held-out stories."""
    draw = random.Random(seed)
    stories: dict[tuple[str, ...], Story] = {}
    while len(stories) < TRAINING + HELD_OUT:
        story = story_of(draw)
        stories.setdefault(story[0], story)
    return list(stories.values())[:TRAINING], list(stories.values())[TRAINING:]


def tensors_of(stories: list[Story]) -> tuple[torch.Tensor, ...]:
    """Return four int64 tensors: statements [B, S, J], questions [B, J], answers [B] and the number of
    supporting statements of each question [B].
    """

    def ids_of(sentence: str) -> list[int]:
        ids = [WORDS.index(word) for word in sentence.split()]
        return ids + [0] * (SENTENCE - len(ids))

    asked = [
        ([ids_of(told) for told in story], *question)
        for story, questions in stories
        for question in questions
    ]
    rows = [(story, ids_of(question), WORDS.index(answer), facts) for story, question, answer, facts in asked]
    return tuple(torch.tensor(column) for column in zip(*rows, strict=True))


class MemoryNetwork(nn.Module):
    """The network of Sukhbaatar et al. 2015, Section 2.2: each hop adds the output of attention to the
    question. The embedding of a word is multiplied by weights that depend on the position of the word
    (Section 4.1).
    """

    def __init__(self, hops: int):
        super().__init__()
        config = VaswaniConfig(d_model=WIDTH, d_k=WIDTH, d_v=WIDTH, attn_implementation="eager")
        self.words = nn.Embedding(len(WORDS), WIDTH, padding_idx=0)
        self.ages = nn.Embedding(STATEMENTS, WIDTH)
        self.hops = nn.ModuleList(
            VaswaniAttention(config, 1, layer_idx=hop, is_cross=True) for hop in range(hops)
        )
        # Use small initial weights, because the word embeddings are also the output projection, and large
        # weights would produce large logits.
        self.words.weight.data.mul_(0.3), self.ages.weight.data.mul_(0.3)
        word, feature = torch.arange(1, SENTENCE + 1)[:, None] / SENTENCE, torch.arange(1, WIDTH + 1) / WIDTH
        self.register_buffer("places", (1 - word) - feature * (1 - 2 * word))

    def forward(self, statements: torch.Tensor, questions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [B, V] of the answer, and the attention of each hop over the statements [B, hops,
        S].
        """
        memory = (self.words(statements) * self.places).sum(dim=-2) + self.ages.weight
        states = (self.words(questions) * self.places).sum(dim=-2)[:, None]
        attended: list[torch.Tensor] = []
        for hop in self.hops:
            found, weights = hop(states, key_value_states=memory)
            states, attended = states + found, [*attended, weights[:, 0, 0]]
        return nn.functional.linear(states[:, 0], self.words.weight), torch.stack(attended, dim=1)


def train(hops: int, stories: list[Story]) -> MemoryNetwork:
    """Train a network on the questions of `stories`."""
    network = MemoryNetwork(hops)
    data = tensors_of(stories)
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, EPOCHS * -(-len(data[0]) // BATCH))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(data[0])).split(BATCH):
            statements, questions, answers, _ = (column[rows] for column in data)
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(statements, questions)[0], answers).backward()
            optimizer.step()
            schedule.step()
    return network.eval()


@torch.no_grad()
def accuracies(network: MemoryNetwork, stories: list[Story]) -> dict[int, float]:
    """Return the percentage of correct answers for each number of supporting statements."""
    statements, questions, answers, facts = tensors_of(stories)
    right = network(statements, questions)[0].argmax(dim=-1) == answers
    return {count: 100 * right[facts == count].float().mean().item() for count in (1, 2, 3)}


@torch.no_grad()
def shown(network: MemoryNetwork, story: Story) -> str:
    """Return a text about one story: each question with the answer of the network, and each statement with
    its attention weight in each hop.
    """
    logits, weights = network(*tensors_of([story])[:2])
    lines = []
    for (question, answer, facts), found, of_hops in zip(
        story[1], logits.argmax(dim=-1), weights, strict=True
    ):
        lines.append(f"\n{question}? {WORDS[found]} (correct: {answer}; supporting statements: {facts})")
        for told, of_statement in zip(story[0], of_hops.T, strict=True):
            lines.append(" ".join(f"{weight:.2f}" for weight in of_statement) + f"  {told}")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Run the experiment: train the networks, and print their results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--hops",
        type=int,
        nargs="+",
        choices=(1, 2, 3),
        default=[1, 2, 3],
        help="train a network for each number of hops; default: 1 2 3",
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the stories and weights; default: 0")
    arguments = parser.parse_args(words)
    stories, held_out = make_stories(arguments.seed)
    print(
        f"{TRAINING:,} training stories. For each network: the correct answers in percent on {HELD_OUT:,} "
        "held-out stories, for 1, 2 and 3 supporting statements; and one story with the attention weight of "
        "each statement in each hop:"
    )
    for hops in arguments.hops:
        torch.manual_seed(arguments.seed)
        network = train(hops, stories)
        print(f"\nhops {hops}:", *(f"{share:.1f}" for share in accuracies(network, held_out).values()))
        print(shown(network, next(story for story in held_out if len(story[1]) == 3)))


if __name__ == "__main__":
    main()
