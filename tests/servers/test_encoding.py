"""The JSON of replies: what has none is refused, and parts become a whole."""

from __future__ import annotations

import json

import pytest

from agentgym_servers.web.encoding import array, encode, extended, wrapped


@pytest.mark.parametrize("value", [float("nan"), {"x": [float("inf")]}, -float("inf"), "\ud800", object()])
def test_a_value_without_json_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        encode(value)


def test_words_in_strings_are_no_numbers():
    assert json.loads(encode({"text": "NaN and -Infinity"})) == {"text": "NaN and -Infinity"}


def test_json_parts_are_joined():
    assert json.loads(extended(b'{"a":1}', {"b": 'x"'})) == {"a": 1, "b": 'x"'}
    assert json.loads(wrapped({"id": None}, "data", b"[1]")) == {"id": None, "data": [1]}
    assert json.loads(wrapped({}, "results", array([b"1", b"null"]))) == {"results": [1, None]}
