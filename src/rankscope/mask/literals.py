"""The texts in source code that its syntax gives to a secret name, over as many lines as they take."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from rankscope.mask.names import MASK, USER_OPTIONS, is_bare_key, is_secret_name, is_secret_option, looks_random
from rankscope.mask.pairs import may_be_argument

_DEFAULTS = frozenset({"default", "const", "value"})
_BEGINS = frozenset(kind for name in ("FSTRING_START", "TSTRING_START") if (kind := getattr(tokenize, name, None)))
_ENDS = frozenset(kind for name in ("FSTRING_END", "TSTRING_END") if (kind := getattr(tokenize, name, None)))

Place = tuple[int, int]
"""A line, from 1, and the characters before it on that line."""


def parsed(code: str) -> ast.Module | None:
    """None where it is no Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in somebody else's texts
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def without_named_literals(code: str) -> str:
    """The same code, as many lines; unchanged where it is no Python."""
    tree = parsed(code)
    if tree is None or "\r" in code:  # which ends a line for the parser alone
        return code
    lines = code.split("\n")
    spans = sorted({_span(node, lines) for value in _secret_values(tree) for node in _texts(value)})
    if not spans:
        return code
    try:
        literals = list(_literals(code))
    except (tokenize.TokenError, SyntaxError):
        return code
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    parts: list[str] = []
    done = 0
    for literal in _within(spans, literals):
        begin, end = (starts[line - 1] + column for line, column in (literal.inside, literal.inside_end))
        parts += (code[done:begin], MASK, _line_ends(code[begin:end], triple=literal.triple))
        done = end
    return "".join(parts) + code[done:]


class _Value(NamedTuple):
    node: ast.expr
    weak: bool = False
    """Only what can hardly be anything else is a secret: `if key == "weight"`."""
    called: bool = False
    """It is given to a function, where some texts only lead to the secret: `load("key.pem")`."""


def _secret_values(tree: ast.AST) -> Iterator[_Value]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from _given([name for target in targets for name in _names(target)], value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _given(_names(target), value)
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield from _given(_names(target), value)
            case ast.keyword(arg=str(name), value=value):
                yield from _given([name], value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    yield from _given(_names_in_text(key), value)
            case ast.arguments():
                yield from _of_parameters(node)
            case ast.Compare():
                yield from _of_comparison(node)
            case ast.Call():
                yield from _of_call(node)


def _given(names: list[str], value: ast.expr) -> Iterator[_Value]:
    secret = [name for name in names if is_secret_name(name)]
    if secret:
        yield _Value(value, weak=all(map(is_bare_key, secret)))


def _names(target: ast.expr | None) -> list[str]:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
        case ast.Subscript(slice=key):
            return _names_in_text(key)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [name for part in parts for name in _names(part)]
    return []


def _names_in_text(key: ast.expr | None) -> list[str]:
    match key:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.Constant(value=bytes(name)):
            return [name.decode("ascii", "replace")]
    return []


def _of_parameters(parameters: ast.arguments) -> Iterator[_Value]:
    positional = [*parameters.posonlyargs, *parameters.args]
    given = positional[len(positional) - len(parameters.defaults) :]
    for parameter, value in zip(
        (*given, *parameters.kwonlyargs), (*parameters.defaults, *parameters.kw_defaults), strict=True
    ):
        if value is not None:
            yield from _given([parameter.arg], value)


def _of_comparison(node: ast.Compare) -> Iterator[_Value]:
    sides = [node.left, *node.comparators]
    names = [name for side in sides for name in _names(side) if is_secret_name(name)]
    if names:
        # `if token == "<pad>"` and `if key in ("q", "k")` compare with what a program handles.
        weak = all(is_bare_key(name) or name.lower() == "token" for name in names)
        sought = isinstance(node.ops[0], ast.In | ast.NotIn)  # `"api_key" in secrets`
        yield _Value(node.left, weak, called=sought)
        yield from (_Value(side, weak) for side in node.comparators if not isinstance(side, ast.Call))


def _of_call(call: ast.Call) -> Iterator[_Value]:
    """`add_argument("--token", default="...")`, `getenv("TOKEN", "...")`; `set_token("...")`, if it looks like one."""
    if any(map(is_secret_name, _names(call.func))):
        yield from (_Value(argument, weak=True) for argument in call.args)
    named: list[str] = []
    for argument in call.args:
        texts = _names_in_text(argument)
        if named and not any(text.startswith("-") for text in texts):
            yield _Value(argument, weak=all(map(is_bare_key, named)))
        named += (text for text in texts if is_secret_option(text) and text not in USER_OPTIONS)
    if named:
        yield from (_Value(each.value) for each in call.keywords if each.arg in _DEFAULTS)


def _texts(value: _Value) -> Iterator[ast.expr]:
    """The texts that make up a value, and not those that only lead to it: keys, names of variables, of files."""
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value.node, ast.Constant):
            if _is_secret(value.node.value, value):
                yield value.node
        elif isinstance(value.node, ast.JoinedStr):
            fixed = [part.value for part in value.node.values if isinstance(part, ast.Constant)]
            if not (value.weak or value.called) or any(_is_secret(text, value) for text in fixed):
                yield value.node
        else:
            todo += _parts(value)


def _is_secret(text: object, value: _Value) -> bool:
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not isinstance(text, str) or not any(map(str.isalnum, text)):
        return False
    return looks_random(text) if value.weak else not (value.called and may_be_argument(text))


def _parts(value: _Value) -> Iterator[_Value]:
    match value.node:
        case ast.Dict(values=parts) | ast.BoolOp(values=parts):
            yield from (value._replace(node=part) for part in parts)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            yield from (value._replace(node=part) for part in parts)
        case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
            yield from (value._replace(node=left), value._replace(node=right))
        case ast.Call(func=func, args=arguments, keywords=keywords):
            if isinstance(func, ast.Attribute):  # "...".strip()
                yield value._replace(node=func.value)
            yield from (value._replace(node=argument, called=True) for argument in arguments)
            yield from (value._replace(node=each.value, called=each.arg not in _DEFAULTS) for each in keywords)


def _span(node: ast.expr, lines: list[str]) -> tuple[Place, Place]:
    start = _place(lines, node.lineno, node.col_offset)
    return start, _place(lines, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


def _place(lines: list[str], line: int, offset: int) -> Place:
    """The parser counts bytes."""
    text = lines[line - 1]
    return line, offset if text.isascii() else len(text.encode()[:offset].decode(errors="replace"))


class _Literal(NamedTuple):
    start: Place
    inside: Place
    inside_end: Place
    end: Place
    triple: bool


def _literals(code: str) -> Iterator[_Literal]:
    """Each text of the code, the pieces of a text in several apart; a text inside of another's braces belongs to it."""
    depth = 0
    begun: tokenize.TokenInfo | None = None
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.STRING and not depth:
            opening = len(token.string) - len(token.string.lstrip("rRbBuUfFtT"))
            quotes = 3 if token.string[opening : opening + 3] in ('"""', "'''") else 1
            (first, column), (last, end) = token.start, token.end
            yield _Literal(
                token.start, (first, column + opening + quotes), (last, end - quotes), token.end, quotes == 3
            )
        elif token.type in _BEGINS:
            begun = begun if depth else token
            depth += 1
        elif token.type in _ENDS:
            depth -= 1
            if not depth and begun:
                yield _Literal(begun.start, begun.end, token.start, token.end, len(token.string) == 3)


def _within(spans: list[tuple[Place, Place]], literals: list[_Literal]) -> Iterator[_Literal]:
    """Those that stand in one of the spans; both come sorted."""
    at = 0
    reach = (0, 0)  # how far those reach that have begun: one span may lie in another
    for literal in literals:
        while at < len(spans) and spans[at][0] <= literal.start:
            reach = max(reach, spans[at][1])
            at += 1
        if literal.end <= reach:
            yield literal


def _line_ends(text: str, *, triple: bool) -> str:
    return ("\n" if triple else "\\\n") * text.count("\n")
