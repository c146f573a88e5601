"""Hydra's override grammar: `key=value`, `+key=value`, `++key=value`, `~key`.

https://hydra.cc/docs/advanced/override_grammar/basic/. Sweeps (`key=1,2`) and functions are not part of verl's use.
"""

import re
from typing import Any

from grpo_api.verl_import.model import Doubt, Fault, Place, Setting, VerlImportError

OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_$][\w$@/:-]*(?:\.[\w$@/:-]+)*)(=|$)")
_INT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?([0-9]+(_[0-9]+)*)?\.?[0-9]*([eE][+-]?[0-9]+)?|[+-]?(inf|nan)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\([\\()\[\]{}:=, \t])")


def parse_override(text: str, place: Place, doubts: tuple[Doubt, ...] = ()) -> list[Setting]:
    """The settings of one override; a dict value makes one for each of its leaves."""
    found = OVERRIDE.match(text)
    if not found or (found[3] != "=" and found[1] != "~"):
        raise VerlImportError([Fault(place, text, "is neither a file nor an override; write key=value")])
    if found[1] == "~":
        return [Setting(found[2], None, place, doubts, deleted=True)]
    raw = text[found.end() :]
    try:
        value = parse_value(raw)
    except ValueError as error:
        raise VerlImportError([Fault(place, text, str(error))]) from None
    return flatten(found[2], value, place, doubts)


def flatten(key: str, value: Any, place: Place, doubts: tuple[Doubt, ...] = ()) -> list[Setting]:
    if isinstance(value, dict) and value:
        return [item for name, inner in value.items() for item in flatten(f"{key}.{name}", inner, place, doubts)]
    return [Setting(key, value, place, doubts)]


def scalar(text: str) -> Any:
    """An unquoted word: null, bool, int, float or text."""
    lower = text.lower()
    if lower in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[lower]
    if _INT.fullmatch(text):
        return int(text)
    number = any(char.isdigit() for char in text) or lower.lstrip("+-") in ("inf", "nan")
    if number and _FLOAT.fullmatch(text):
        return float(text)
    return _ESCAPE.sub(r"\1", text)


def parse_value(text: str) -> Any:
    """The value of an override. Raises ValueError with the repair."""
    reader = _Reader(text.strip())
    if not reader.text:
        return ""
    value = reader.value("")
    if reader.at < len(reader.text):
        rest = reader.text[reader.at :]
        if rest.startswith(","):
            raise ValueError("holds several values, a sweep; give one, or put a list in [brackets]")
        raise ValueError(f"has {rest!r} after its value; quote the whole value")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def space(self) -> None:
        while self.peek().isspace():
            self.at += 1

    def value(self, ends: str) -> Any:
        """One value up to a character of `ends` or a comma outside brackets."""
        self.space()
        char = self.peek()
        if char == "[":
            return self.sequence()
        if char == "{":
            return self.mapping()
        if char in ("'", '"'):
            return self.quoted(char)
        return scalar(self.unquoted(ends))

    def sequence(self) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while True:
            self.space()
            if self.take("]", items):
                return items
            items.append(self.value("]"))

    def mapping(self) -> dict[str, Any]:
        self.at += 1
        items: dict[str, Any] = {}
        while True:
            self.space()
            if self.take("}", items):
                return items
            name = self.quoted(self.peek()) if self.peek() in ("'", '"') else self.unquoted(":}")
            self.space()
            if self.peek() != ":":
                raise ValueError(f"has no ':' after {name!r} in its {{...}}")
            self.at += 1
            items[str(name)] = self.value("}")

    def take(self, end: str, items: list[Any] | dict[str, Any]) -> bool:
        """Step over the comma before the next item; true at the end."""
        if self.at >= len(self.text):
            raise ValueError(f"has no closing {end!r}; in a shell, put the value in quotes")
        if items and self.peek() == ",":
            self.at += 1
            self.space()
        elif items and self.peek() != end:
            raise ValueError(f"needs ',' or {end!r} before {self.text[self.at :]!r}")
        if self.peek() == end:
            self.at += 1
            return True
        return False

    def quoted(self, quote: str) -> str:
        start = self.at
        self.at += 1
        found = ""
        while self.at < len(self.text):
            char = self.peek()
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in (quote, "\\"):
                self.at += 1
                found += self.peek()
            elif char == quote:
                self.at += 1
                return found
            else:
                found += char
            self.at += 1
        raise ValueError(f"has no closing {quote} after {self.text[start:]!r}")

    def unquoted(self, ends: str) -> str:
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.peek()
            if self.text.startswith("${", self.at):
                depth += 1
                self.at += 1
            elif char == "}" and depth:
                depth -= 1
            elif char == "\\":
                self.at += 1
            elif depth == 0 and (char in ends or char == ","):
                break
            self.at += 1
        return self.text[start : self.at].strip()
