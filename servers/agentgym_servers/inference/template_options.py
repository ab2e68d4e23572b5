"""Variables of the chat template that a client may set: plain ones, such as `enable_thinking`, and nothing else.

Everything that `apply_chat_template` interprets itself is the server's: a template that the client brings would be
executed, and it would change what is recorded under /episodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

RESERVED = frozenset(
    {
        *("chat_template", "tokenize", "add_generation_prompt", "add_special_tokens", "continue_final_message"),
        *("conversation", "conversations", "messages", "tools", "documents", "padding", "truncation", "max_length"),
        *("tokenizer", "tokenizer_kwargs", "kwargs", "template_kwargs", "generation_indices", "raise_exception"),
        *("strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner", "loop", "self", "caller"),
        *("varargs", "context", "environment"),
    }
)
"""Names with a meaning of their own: parameters of transformers' `apply_chat_template`, and jinja's functions."""
TOP_LEVEL = ("chat_template", "tokenize", "add_generation_prompt", "documents", "tokenizer_kwargs", "conversation")
"""Those that are refused outside chat_template_kwargs as well."""
_SPECIAL_TOKEN = re.compile(r"\w+_tokens?(_ids?)?")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
MAX_VARIABLES = 32
MAX_TEXT = 256
"""Characters of a variable's text."""
MAX_NUMBER = 2**31


def reserved(name: str) -> bool:
    """Return whether the server decides what `name` is."""
    folded = name.strip().strip("_").lower()
    return folded in RESERVED or folded.startswith("return_") or bool(_SPECIAL_TOKEN.fullmatch(folded))


def option_error(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """(field, what is wrong) of the first variable that may not pass; None when all may."""
    if len(options) > MAX_VARIABLES:
        return "chat_template_kwargs", f"a request sets at most {MAX_VARIABLES} variables of the chat template"
    for name, value in options.items():
        field = f"chat_template_kwargs.{name[:80]}"
        if reserved(name):
            return field, "the server decides this; only plain variables of the model's chat template may be set"
        if not _NAME.fullmatch(name):
            return field, "a template variable's name has 1 to 64 lower-case letters, digits and underscores"
        if (problem := _value_error(value)) is not None:
            return field, problem
    return None


def _value_error(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if len(value) <= MAX_TEXT else f"a variable's text has at most {MAX_TEXT} characters"
    if isinstance(value, int | float):
        return None if abs(value) <= MAX_NUMBER else f"a variable's number is between -{MAX_NUMBER} and {MAX_NUMBER}"
    return "a template variable is a string, a number, true, false or null"
