"""Bash arithmetic on whole numbers: `$((max_prompt_length + max_response_length))`."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

_BINARY: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: int(a / b) if abs(a) < 2**50 else a // b,  # bash cuts towards zero
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: lambda a, b: a << min(b, 64),
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MAX_LENGTH = 1000


class _Unknown(Exception):
    """A part of an expression that is not computed here."""


def evaluate(text: str, variable: Callable[[str], int]) -> int:
    """The value of an expression; `variable` gives a name's value. Raises ValueError with the reason."""
    python = text.strip().replace("\n", " ")
    if not python:
        return 0
    python = re.sub(r"(?<!/)/(?!/)", "//", python).replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"!(?!=)", " not ", python)
    if len(python) > _MAX_LENGTH or "**" in python:
        raise ValueError(f"$(({text})) is not computed here")
    try:
        return _value(ast.parse(python.strip(), mode="eval").body, variable)
    except (SyntaxError, RecursionError, _Unknown):
        raise ValueError(f"$(({text})) is not computed here") from None
    except ZeroDivisionError:
        raise ValueError(f"$(({text})) divides by zero") from None


def _value(node: ast.expr, variable: Callable[[str], int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return variable(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, variable), _value(node.right, variable))
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, variable)
        if isinstance(node.op, ast.Not):
            return int(not inner)
        return -inner if isinstance(node.op, ast.USub) else ~inner if isinstance(node.op, ast.Invert) else inner
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(item, variable)) for item in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        return int(_COMPARE[type(node.ops[0])](_value(node.left, variable), _value(node.comparators[0], variable)))
    raise _Unknown
