"""Every public class and function has an Example in its docstring, and the Example runs without a network."""

import doctest
import inspect
from pathlib import Path

import pytest
import torch

import vaswani_hf
from vaswani_hf.model.inputs_vaswani import SearchSettings, TranslationOptions

PUBLIC = {name: getattr(vaswani_hf, name) for name in vaswani_hf.__all__}
PUBLIC |= {"SearchSettings": SearchSettings, "TranslationOptions": TranslationOptions}


def documentation(thing) -> str:
    """Return the docstring with the Example, which is the docstring of the name itself or of a base class."""
    texts = [inspect.cleandoc(part.__doc__ or "") for part in getattr(thing, "__mro__", [thing])]
    return next((text for text in texts if ">>>" in text), "")


DOCUMENTED = [name for name, thing in PUBLIC.items() if callable(thing)]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_of_a_public_name_runs(name, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    torch.manual_seed(0)
    names = {**vars(vaswani_hf), **PUBLIC}
    example = doctest.DocTestParser().get_doctest(documentation(PUBLIC[name]), names, name, None, 0)
    assert example.examples, f"`{name}` needs an Example in its docstring."
    report = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert not report, "".join(report)
