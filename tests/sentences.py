"""Tables of error messages: one line per case, with an abbreviated message."""


def contains(sentence: str, parts: str) -> bool:
    """True if one sentence contains all parts, which " ... " separates, in this order."""
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
