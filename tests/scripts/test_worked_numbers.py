"""The worked numbers equal the numbers of the notes and arithmetic that shares no code with the package."""

import re

import pytest


@pytest.fixture(scope="module")
def worked(script):
    return script("worked_numbers")


def test_the_page_shows_every_intermediate_and_where_the_notes_are_wrong(worked):
    text = worked.page()
    for row in (
        ("scores q·k", "0.6600", "0.4500"),
        ("scaled by 1/sqrt(3)", "0.3811", "0.2598"),
        ("weights, their softmax", "0.5303", "0.4697"),
        ("context", "0.8242", "0.3000", "0.4349"),
        ("position 2", "0.4000", "0.3000", "-inf"),
        ("position 2", "1.4918", "1.3499", "0.0000", "2.8417"),
        ("position 2", "0.5250", "0.4750", "0.0000"),
        ("target t", "0.9000", "0.0333", "0.0333", "0.0333"),
        ("target t", "0.9250", "0.0250", "0.0250", "0.0250"),
        ("layer norm", "-1.3416", "-0.4472", "0.4472", "1.3416"),
        ("step 2000", "2.236068e-02", "7.905694e-03", "3.493856e-04"),
        ("step 4000", "1.581139e-02", "1.581139e-02", "6.987712e-04"),
        ("step 16000", "7.905694e-03", "6.324555e-02", "3.493856e-04"),
        ("PE(3)", "0.1411", "-0.9900", "0.0300", "0.9996"),
    ):
        assert f"| {' | '.join(row)} |" in text
    assert "the second row is 0.7 0.3, but the softmax of 0.4 and 0.3 is\n0.52 0.48." in text
    assert "The last number is 0.4349, which rounds to 0.43." in text
    # The product M PE(1) equals PE(3).
    made, meant = (
        re.search(rf"^\| {re.escape(name)} (.*)$", text, re.MULTILINE)[1] for name in ("M PE(1)", "PE(3)")
    )
    assert made == meant
