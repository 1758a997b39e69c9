"""Which names of a program speak of its rank, whatever they are: variables, attributes, functions, decorators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from rankscope.diagnosis.source.syntax import Function, own_nodes

RANK_WORD = re.compile(
    r"(?i)(?<![a-z])(?:\w*_)?(?:rank|rank_?\d|rank_?zero|is_?main\w*|main_?process|is_?master|master|global_zero|is_?chief|"
    r"is_?leader|is_?primary|is_?coordinator|process_index|procid)(?![a-z])|get_rank|is_global_zero|"
    r"is_main_process|local_rank|isend|rank_id"
)
_DECORATOR_WORD = re.compile(
    r"(?i)(?:^|[._])(?:run_|only_)?(?:on|only|if|for)_?(?:the_?)?(?:local_?|global_?|last_?)?"
    r"(?:main|master|rank|process|chief|primary|leader|coordinator)(?![a-z])"
    r"|(?:main|master|zero|rank_?\d*|process|chief|primary|leader|coordinator)_?only|rank_?(?:zero|0)"
)
_ASKS_RANK = frozenset({"get_rank", "get_global_rank", "get_local_rank", "get_node_local_rank", "get_node_rank"})
_RANK_ATTRIBUTES = frozenset({"rank", "local_rank", "global_rank", "node_rank", "process_index", "local_process_index"})
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"})
_CONVERSIONS = frozenset({"int", "bool", "str"})
_ROUNDS = 6
"""A name may get its meaning from another, and that from a third."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_TELLING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Scopes = Sequence[ast.AST]
"""The functions around a place, and the module."""


class RankNames:
    """What the known files of a program call the rank, and what depends on nothing but it."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._variables: dict[ast.AST, set[str]] = {}
        self._attributes: set[str] = set()
        self._functions: set[str] = set()
        self._decorators: set[str] = set()
        nodes = [pair for tree in trees for pair in _telling_nodes(tree)]
        self._defined: dict[str, list[Function]] = {}
        for node, _ in nodes:
            if isinstance(node, Function):
                self._defined.setdefault(node.name, []).append(node)
        for _ in range(_ROUNDS):
            before = self._size()
            for node, scopes in nodes:
                self._learn(node, scopes)
            if self._size() == before:
                break
        self._attributes -= set(self._of_others(nodes))

    def speaks(self, expression: ast.expr, scopes: Scopes) -> bool:
        """Whether an expression has to do with the rank."""
        if RANK_WORD.search(ast.unparse(expression)):
            return True
        return any(self._is_known(node, scopes) for node in ast.walk(expression))

    def reserves(self, decorator: ast.expr) -> bool:
        """Whether a decorator lets only some ranks call the function: by its own body, or by its name."""
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        return last_name(named) in self._decorators or bool(_DECORATOR_WORD.search(ast.unparse(named)))

    def _size(self) -> int:
        variables = sum(map(len, self._variables.values()))
        return variables + len(self._attributes) + len(self._functions) + len(self._decorators)

    def _learn(self, node: ast.AST, scopes: Scopes) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, scopes)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assign(node.target, node.value, scopes)
        elif isinstance(node, ast.Call):
            self._pass_on(node, scopes)
        elif isinstance(node, Function) and not node.name.startswith("__"):
            inner = (node, *scopes)
            if self._answers(node, inner):
                self._functions.add(node.name)
            if self._wraps(node, inner):
                self._decorators.add(node.name)
        elif isinstance(node, ast.ClassDef) and any(
            isinstance(each, Function) and each.name == "__call__" and self._tests(each, (each, *scopes))
            for each in node.body
        ):
            self._decorators.add(node.name)

    def _assign(self, target: ast.expr, value: ast.expr, scopes: Scopes) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other, scopes)
        elif isinstance(value, ast.Lambda) and isinstance(target, ast.Name | ast.Attribute):
            if self._is_rank(value.body, (value, *scopes)):
                self._functions.add(last_name(target))
        elif not self._is_rank(value, scopes):
            return
        elif isinstance(target, ast.Name):
            self._variables.setdefault(scopes[0], set()).add(target.id)
        elif isinstance(target, ast.Attribute):
            self._attributes.add(target.attr)

    def _of_others(self, nodes: Iterable[tuple[ast.AST, Scopes]]) -> Iterator[str]:
        """Attributes that also hold something else somewhere: `self.index = rank` makes no rank of `batch.index`."""
        for node, scopes in nodes:
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant | ast.Lambda):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and not self._is_rank(node.value, scopes):
                        yield target.attr

    def _pass_on(self, call: ast.Call, scopes: Scopes) -> None:
        """A function that is called with the rank knows it under the name of its parameter."""
        called = self._defined.get(last_name(call.func), [])
        if len(called) != 1:
            return
        parameters = [argument.arg for argument in (*called[0].args.posonlyargs, *called[0].args.args)]
        if parameters[:1] in (["self"], ["cls"]):
            del parameters[0]
        given = [*zip(parameters, call.args, strict=False), *((each.arg, each.value) for each in call.keywords)]
        for name, value in given:
            if name is not None and self._is_rank(value, scopes):
                self._variables.setdefault(called[0], set()).add(name)

    def _answers(self, function: Function, scopes: Scopes) -> bool:
        """Whether a function tells the rank, or whether this is some rank."""
        answers = [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]
        if any(value is not None and self._is_rank(value, scopes) for value in answers):
            return True
        constant = all(isinstance(value, ast.Constant) and isinstance(value.value, bool) for value in answers)
        return bool(answers) and constant and self._tests(function, scopes)

    def _wraps(self, function: Function, scopes: Scopes) -> bool:
        return any(
            isinstance(node, Function) and node is not function and self._tests(node, (node, *scopes))
            for node in ast.walk(function)
        )

    def _tests(self, function: Function, scopes: Scopes) -> bool:
        """Whether a condition in the function itself is on the rank."""
        for node in own_nodes(function):
            if isinstance(node, ast.If | ast.IfExp) and self.speaks(node.test, scopes):
                return True
            if isinstance(node, ast.BoolOp) and self.speaks(node.values[0], scopes):
                return True
        return False

    def _is_known(self, node: ast.AST, scopes: Scopes) -> bool:
        if isinstance(node, ast.Name):
            return any(node.id in self._variables.get(scope, ()) for scope in scopes)
        if isinstance(node, ast.Attribute):
            return node.attr in self._attributes or node.attr in self._functions
        return isinstance(node, ast.Call) and last_name(node.func) in self._functions

    def _is_rank(self, value: ast.expr, scopes: Scopes) -> bool:
        """An expression that depends on nothing but the rank: a call that asks for it, the launcher's variable, an
        attribute, a comparison of one of these."""
        if isinstance(value, ast.Name):
            return bool(RANK_WORD.fullmatch(value.id)) or self._is_known(value, scopes)
        if isinstance(value, ast.Attribute):
            return value.attr in _RANK_ATTRIBUTES or self._is_known(value, scopes)
        if isinstance(value, ast.Call):
            return self._calls_for_rank(value, scopes)
        if isinstance(value, ast.Subscript):
            return ast.unparse(value.value).endswith("environ") and _names_rank(value.slice)
        if isinstance(value, ast.BinOp):
            return isinstance(value.op, ast.Mod | ast.FloorDiv) and self._is_rank(value.left, scopes)
        if isinstance(value, ast.IfExp) and isinstance(value.body, ast.Constant):
            return self._is_rank(value.test, scopes) or self._is_rank(value.orelse, scopes)
        return any(self._is_rank(part, scopes) for part in _parts(value))

    def _calls_for_rank(self, call: ast.Call, scopes: Scopes) -> bool:
        if isinstance(call.func, ast.Name) and call.func.id in _CONVERSIONS and len(call.args) == 1:
            return self._is_rank(call.args[0], scopes)
        asked = ast.unparse(call.func)
        if asked.endswith(("environ.get", "getenv")):
            return bool(call.args) and _names_rank(call.args[0])
        return asked.rpartition(".")[2] in _ASKS_RANK or asked.rpartition(".")[2] in self._functions


def _parts(value: ast.expr) -> Sequence[ast.expr]:
    """Of an expression that is about the rank if one of these is."""
    if isinstance(value, ast.Compare):
        return value.left, *value.comparators
    if isinstance(value, ast.BoolOp):
        return value.values
    if isinstance(value, ast.UnaryOp):
        return (value.operand,)
    if isinstance(value, ast.IfExp):
        return value.body, value.orelse
    return (value.value,) if isinstance(value, ast.NamedExpr) else ()


def _names_rank(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value in _RANK_VARIABLES


def last_name(named: ast.expr) -> str:
    """`get` of `self.store.get`; empty where it is no name."""
    return named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""


def _telling_nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """What gives names a meaning, with the functions around it, the innermost first. No recursion: a program may nest
    expressions deeper than Python nests calls."""
    waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while waiting:
        node, scopes = waiting.pop()
        if isinstance(node, _TELLING):
            yield node, scopes
        inner = (node, *scopes) if isinstance(node, _SCOPES) else scopes
        waiting.extend((child, inner) for child in ast.iter_child_nodes(node))
