"""A condition of the user's source that leads to a call, or past it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Literal

import msgspec

from rankscope.diagnosis.source.rank_names import RankNames, Scopes

Kind = Literal[
    "if", "else", "and", "or", "ternary", "decorator", "while", "case", "except", "suppress",
    "return", "continue", "break", "assert", "raise",
]  # fmt: skip
_LONGEST = 60


class Branch(msgspec.Struct, frozen=True):
    line: int
    test: str
    """The condition as the source has it; of `case`, with the `match`; of `except`, what is caught."""
    on_rank: bool
    """The condition speaks of the rank."""
    node: int
    """Identity of the statement or expression, to recognise two branches of one condition."""
    side: str
    """`body` or `orelse`; `case 2`; for a way past, how it leaves: `return`, `continue`, `break`, `except`."""
    names: frozenset[str] = frozenset()
    """Variables of the condition."""
    kind: Kind = "if"
    """What the source has there. `return`, `continue` and `break` are such under an `if`."""
    holds: bool = True
    """This way is taken where the condition is true; False: where it is not."""

    @property
    def quote(self) -> str:
        """The condition in the source's own words, with dots for what depends on it."""
        condition = self.test if self.holds else f"not ({self.test})"
        return {
            "if": f"if {self.test}",
            "else": f"if {self.test}",
            "and": f"{self.test} and …",
            "or": f"{self.test} or …",
            "ternary": f"… if {self.test} else …",
            "decorator": f"@{self.test}",
            "while": f"while {self.test}",
            "case": self.test if self.side.startswith("case") else f"{self.test}: {self.side}",
            "except": f"except {self.test}".rstrip() + ("" if self.side == "except" else f": {self.side}"),
            "suppress": f"with {self.test}",
            "assert": f"assert {self.test}",
        }.get(self.kind, f"if {condition}: {self.kind}")


class Place(msgspec.Struct, frozen=True):
    """Where in a file one reads: what its names mean there."""

    known: RankNames
    scopes: Scopes

    def branch(
        self, kind: Kind, at: ast.AST, test: ast.expr, side: str, *, holds: bool = True, position: ast.AST | None = None
    ) -> Branch:
        """`position` tells one condition from another where that is not `at` itself."""
        return self.worded(kind, at, ast.unparse(test), side, (test,), holds=holds, position=position)

    def worded(
        self,
        kind: Kind,
        at: ast.AST,
        words: str,
        side: str,
        parts: Sequence[ast.expr] = (),
        *,
        holds: bool = True,
        position: ast.AST | None = None,
    ) -> Branch:
        """The same, for a condition that is no single expression."""
        line, column = _position(at if position is None else position)
        return Branch(
            line=getattr(at, "lineno", 0),
            test=words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "...",
            on_rank=kind == "decorator" or any(self.known.speaks(part, self.scopes) for part in parts),
            node=line * 1000 + column,
            side=side,
            names=frozenset(
                ast.unparse(node)
                for part in parts
                for node in ast.walk(part)
                if isinstance(node, ast.Name | ast.Attribute)
            ),
            kind=kind,
            holds=holds,
        )


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
