"""Tables of error messages: one line per case, with an abbreviated message."""


def contains(sentence: str, parts: str) -> bool:
    """True if the text is one line that contains all parts in this order. " ... " separates the parts."""
    position = 0
    for part in parts.split(" ... "):
        position = sentence.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return "\n" not in sentence


def rows(table: str) -> list[list[str]]:
    """The cells of a table with one line per case and " | " between the cells."""
    return [line.strip().split(" | ") for line in table.strip().splitlines()]
