from typing import Any


def flatten_axtree_to_str(tree: dict[str, Any], properties: dict[str, Any]) -> str:
    return f"RootWebArea {tree['name']!r}"
