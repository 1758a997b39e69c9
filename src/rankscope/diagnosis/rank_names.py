"""Which variables of a program hold its rank, whatever they are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

_Variable = ast.Name | ast.Attribute
_ASKS_RANK = frozenset({"get_rank", "get_global_rank", "get_local_rank", "get_node_local_rank"})
_RANK_ATTRIBUTES = frozenset({"rank", "local_rank", "global_rank", "process_index", "local_process_index"})
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"})


@lru_cache(maxsize=64)
def rank_names(tree: ast.Module) -> frozenset[str]:
    """Variables that hold the rank, or a comparison with it, whatever they are called: by what is assigned to them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.update(_named_after_rank(target, node.value))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            found.update(_named_after_rank(node.target, node.value))
    return frozenset(found)


def _named_after_rank(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _named_after_rank(one, other)
    elif isinstance(target, _Variable) and _is_rank(value):
        yield ast.unparse(target)


def _is_rank(value: ast.expr) -> bool:
    """An expression whose value is the rank: a call that asks for it, the launcher's variable, an attribute."""
    if isinstance(value, ast.Compare):
        return _is_rank(value.left)
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Name) and value.func.id == "int" and len(value.args) == 1:
            return _is_rank(value.args[0])
        asked = ast.unparse(value.func)
        if asked.endswith(("environ.get", "getenv")):
            return bool(value.args) and _names_rank(value.args[0])
        return asked.rpartition(".")[2] in _ASKS_RANK
    if isinstance(value, ast.Subscript):
        return ast.unparse(value.value).endswith("environ") and _names_rank(value.slice)
    return isinstance(value, ast.Attribute) and value.attr in _RANK_ATTRIBUTES


def _names_rank(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value in _RANK_VARIABLES
