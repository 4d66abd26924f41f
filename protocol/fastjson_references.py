"""fastjson's references: `{"$ref":"$.path"}` in place of an object that was written before.

Java writes one when the same instance occurs twice in a body. `$` is the root, `@` the object around the reference,
`..` the one around that. A reference that leads nowhere becomes None, as in Java. References make values shared, and
`$`, `@` and `..` make them cyclic: whoever walks a resolved value has to bound the walk.
"""

import re
from typing import Any

#: Longest chain of references that lead to references.
MAX_HOPS = 32

_STEP = re.compile(r"\.((?:\\.|[^.\[\\])+)|\[(-?[0-9]{1,9})\]|\[(['\"])(.*?)\3\]", re.S)
_ESCAPED = re.compile(r"\\+(.)", re.S)


def resolve(root: Any) -> Any:
    """The same tree with every reference replaced by what it stands for. Changes the tree in place."""
    if _path(root) is not None:
        return None
    known: dict[str, Any] = {}
    #: Containers to look through, each with the container around it.
    todo: list[tuple[Any, Any]] = [(root, None)]
    while todo:
        node, parent = todo.pop()
        for key, child in list(_children(node)):
            path = _path(child)
            if path is None:
                if isinstance(child, dict | list):
                    todo.append((child, node))
            elif path == "@":
                node[key] = node
            elif path == "..":
                node[key] = parent
            else:
                node[key] = _find(root, path, known, 0)
    return root


def _children(node: Any) -> Any:
    if isinstance(node, dict):
        return node.items()
    return enumerate(node) if isinstance(node, list) else ()


def _path(node: Any) -> str | None:
    """The path of a reference; None for everything else."""
    if isinstance(node, dict) and len(node) == 1 and isinstance(path := node.get("$ref"), str):
        return path
    return None


def _find(root: Any, path: str, known: dict[str, Any], hops: int) -> Any:
    if path in known:
        return known[path]
    if hops >= MAX_HOPS:
        return None
    known[path] = None  # what a reference to itself comes to
    node, pos = root, 1
    if not path.startswith("$"):
        return None
    while pos < len(path):
        step = _STEP.match(path, pos)
        if step is None:
            return None
        node = _child(node, step)
        if (inner := _path(node)) is not None:
            node = _find(root, inner, known, hops + 1)
        pos = step.end()
    known[path] = node
    return node


def _child(node: Any, step: re.Match[str]) -> Any:
    name, index, _, quoted = step.groups()
    if isinstance(node, list):
        return node[int(index)] if index and 0 <= int(index) < len(node) else None
    if not isinstance(node, dict):
        return None
    if index:
        return node.get(int(index), node.get(index))
    text = _ESCAPED.sub(r"\1", name) if name else quoted
    if text in node:
        return node[text]
    return node.get(int(text)) if re.fullmatch(r"-?[0-9]{1,19}", text) else None
