"""Tests of vaswani_hf/data/memory.py."""

import os

import pytest

from vaswani_hf.data.memory import limit_primitive_cache

VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


@pytest.mark.parametrize(("given", "expected"), [({}, "16"), ({VARIABLE: "200"}, "200")])
def test_the_primitive_cache_is_small_if_the_user_has_set_no_size(monkeypatch, given, expected):
    environment = dict(given)
    monkeypatch.setattr(os, "environ", environment)
    limit_primitive_cache()
    assert environment == {VARIABLE: expected}
