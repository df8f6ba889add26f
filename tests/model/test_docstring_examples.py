"""The Examples in the docstrings of public names run, without a network. Every public class has an Example."""

import doctest
import inspect

import pytest
import torch

import vaswani_hf
from vaswani_hf.model.generation_vaswani import SearchSettings
from vaswani_hf.model.translator_vaswani import TranslationOptions

PUBLIC = {name: getattr(vaswani_hf, name) for name in vaswani_hf.__all__}
PUBLIC |= {"SearchSettings": SearchSettings, "TranslationOptions": TranslationOptions}
DOCUMENTED = [
    name for name, thing in PUBLIC.items() if inspect.isclass(thing) or ">>>" in (inspect.getdoc(thing) or "")
]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_of_a_public_name_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {**vars(vaswani_hf), **PUBLIC}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]), names, name, None, 0)
    assert example.examples, f"`{name}` needs an Example in its docstring."
    report = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert not report, "".join(report)
