"""Expansion of a script's words: variables, arrays, defaults, arithmetic, and the few commands that only print text."""

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_api.verl_import.model import Doubt
from grpo_api.verl_import.shell_arith import evaluate
from grpo_api.verl_import.shell_lex import Part, Token, bare_parts

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_EXPANSION = re.compile(rf"(?P<name>{_NAME}|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.DOTALL)
_PROBE = re.compile(r"&&\s*echo\s+\S+\s*\|\|\s*echo\s+(?P<no>\S+)\s*$", re.DOTALL)


@dataclass(frozen=True)
class Text:
    """A string, and why it may not be what bash would have."""

    text: str
    doubts: frozenset[Doubt] = frozenset()
    line: int = field(default=0, compare=False)
    """Of an array's element: where it stands."""
    whole: bool = field(default=False, compare=False)
    """Made from quoted text, as in `${a:-'b c'}`: not split at its blanks."""

    @property
    def decidable(self) -> bool:
        return all(doubt.unset for doubt in self.doubts)


Value = Text | list[Text]


def joined(texts: Sequence[Text], by: str = "") -> Text:
    if len(texts) == 1:
        return texts[0]
    return Text(by.join(item.text for item in texts), frozenset().union(*(item.doubts for item in texts)))


class Scope:
    """Variables and arguments of a script, and how its words expand."""

    def __init__(self, name: str, env: Mapping[str, str], note: Callable[[int, str], None]) -> None:
        self.name = name
        self.variables: dict[str, Value] = {key: Text(value) for key, value in env.items()}
        self.arguments: list[Text] = []
        self.note = note

    # Words

    def fields(self, word: Token) -> list[Text]:
        """A word as the fields that bash makes of it: `"${A[@]}"` and unquoted blanks make several."""
        made: list[Text] = []
        current: list[Text] | None = None
        for part in word.parts:
            values = self.part(part, word.line)
            if part.quoted or part.kind == "text":
                pieces = [[value] for value in values]
            else:
                pieces = [[Text(piece, value.doubts)] for value in values for piece in _split(value)]
            if not pieces:
                continue
            for index, piece in enumerate(pieces):
                if index > 0:
                    made.append(joined(current or []))
                    current = None
                current = [*(current or []), *piece]
        return made if current is None else [*made, joined(current)]

    def text(self, word: Token) -> Text:
        """A word without splitting, as in an assignment."""
        return self.parts(word.parts, word.line)

    def parts(self, parts: Sequence[Part], line: int) -> Text:
        return joined([joined(self.part(part, line), " ") for part in parts])

    def part(self, part: Part, line: int) -> list[Text]:
        if part.kind == "text":
            return [Text(part.text)]
        if part.kind == "arith":
            return [self.arithmetic(part.text, line)]
        if part.kind == "cmd":
            return [self.substitution(part.text, line)]
        return self.expansion(part.text, line, part.quoted)

    def arithmetic(self, text: str, line: int) -> Text:
        plain = self.parts(bare_parts(self.name, text, line), line)
        doubts = set(plain.doubts)

        def variable(name: str) -> int:
            value = self.get(name)
            doubts.update(value.doubts)
            return evaluate(value.text, lambda _: 0)

        try:
            return Text(str(evaluate(plain.text, variable)), frozenset(doubts))
        except ValueError as error:
            return Text("", frozenset({*doubts, Doubt(str(error))}))

    def substitution(self, text: str, line: int) -> Text:
        """`$( ... )`: never run. `probe && echo a || echo b` is taken as b."""
        shown = " ".join(text.split())
        shown = f"$({shown if len(shown) <= 60 else shown[:57] + '...'})"
        if found := _PROBE.search(text):
            self.note(line, f"{shown} is not run; taken as {found['no']}")
            return Text(found["no"].strip("'\""))
        words = (
            self.parts(bare_parts(self.name, text, line), line)
            if re.match(r"\s*(echo|basename|dirname)\s", text)
            else None
        )
        if words is not None and not re.search(r"[|;&<>]", text):
            command, *rest = words.text.split()
            rest = [item for item in rest if item != "--"]
            if command == "echo":
                return Text(" ".join(rest), words.doubts)
            if rest:
                base = rest[0].rstrip("/")
                if command == "dirname":
                    return Text(base.rpartition("/")[0] or ".", words.doubts)
                name = base.rpartition("/")[2]
                return Text(name.removesuffix(rest[1]) if len(rest) > 1 else name, words.doubts)
        if text.strip() == "pwd" and "PWD" in self.variables:
            return self.get("PWD")
        return Text("", frozenset({Doubt(f"{shown} is not run")}))

    # Variables

    def get(self, name: str) -> Text:
        """A scalar, or an array's first element; an unset name is empty and says so."""
        value = self.variables.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        return value if value is not None else Text("", frozenset({Doubt(f"${name} is not set", unset=True)}))

    def elements(self, name: str) -> list[Text]:
        held = self.variables.get(name)
        return held if isinstance(held, list) else [] if held is None else [held]

    def special(self, name: str) -> list[Text] | None:
        if name in "@*":
            return self.arguments
        if name == "#":
            return [Text(str(len(self.arguments)))]
        if name == "0":
            return [Text(self.name)]
        if name.isdigit():
            given = int(name) <= len(self.arguments)
            return [self.arguments[int(name) - 1]] if given else []
        return None if re.fullmatch(_NAME, name) else [Text("", frozenset({Doubt(f"${name} is not known here")}))]

    def expansion(self, inner: str, line: int, quoted: bool = False) -> list[Text]:
        if inner.startswith("#") and len(inner) > 1:
            values = self.expansion(inner[1:], line)
            count = len(values) if inner.endswith(("[@]", "[*]")) else len(joined(values).text)
            return [Text(str(count), joined(values).doubts)]
        found = _EXPANSION.fullmatch(inner)
        if not found or inner.startswith("!"):
            return [Text("", frozenset({Doubt(f"${{{inner}}} is not known here")}))]
        name, index, rest = found["name"], found["index"], found["rest"]
        if rest.startswith("."):
            text = (
                f"${{{inner}}} is bash's here, and no name of it has dots: put verl's interpolations in single quotes"
            )
            return [Text("", frozenset({Doubt(text)}))]
        special = self.special(name)
        many = name in ("@", "*") or index in ("@", "*")
        if special is not None:
            values, is_set = special, bool(special)
        elif index in ("@", "*"):
            values = self.elements(name)
            is_set = bool(values)
        else:
            value = self.element(name, index, line)
            values, is_set = ([] if value is None else [value]), value is not None
        if not rest and quoted and many and "*" in (name, index):
            return [joined(values, " ")]
        if not rest:
            return values if many or values else [Text("", frozenset({Doubt(f"${name} is not set", unset=True)}))]
        return self.operate(name, values, is_set, many, rest, line, quoted)

    def element(self, name: str, index: str | None, line: int) -> Text | None:
        held = self.variables.get(name)
        if not isinstance(held, list):
            return held if index in (None, "0") else None
        number = self.arithmetic(index or "0", line)
        at = int(number.text or 0)
        return held[at] if -len(held) <= at < len(held) else None

    def operate(
        self, name: str, values: list[Text], is_set: bool, many: bool, rest: str, line: int, quoted: bool
    ) -> list[Text]:
        """`${name<rest>}` with an operator."""
        if found := re.match(r"(:?)([-=+?])", rest):
            holds = is_set and not (found[1] and not joined(values).text)
            parts = bare_parts(self.name, rest[found.end() :], line, quoted=quoted)
            word = self.parts(parts, line)
            word = Text(word.text, word.doubts, whole=any(part.quoted for part in parts))
            if found[2] == "+":
                return [word] if holds else [Text("")]
            if holds:
                return values
            if found[2] == "?":
                return [Text("", frozenset({Doubt(f"${name} is not set ({word.text.strip()})", unset=True)}))]
            if found[2] == "=" and re.fullmatch(_NAME, name):
                self.variables[name] = Text(word.text, word.doubts)
            return [word]
        if many and rest.startswith(":"):
            start = int(self.arithmetic(rest[1:].partition(":")[0], line).text or 0)
            return values[max(start - 1, 0) if name in ("@", "*") else start :]
        if not values:
            values = [Text("", frozenset({Doubt(f"${name} is not set", unset=True)}))]
        return [self.edit(value, rest, line) for value in values]

    def edit(self, value: Text, rest: str, line: int) -> Text:
        text = value.text
        sign = re.match(r"##?|%%?|//?|", rest)
        argument = self.parts(bare_parts(self.name, rest[sign.end() :] if sign else "", line), line).text
        if rest in (",", ",,"):
            text = text.lower() if rest == ",," else text[:1].lower() + text[1:]
        elif rest in ("^", "^^"):
            text = text.upper() if rest == "^^" else text[:1].upper() + text[1:]
        elif rest.startswith("#"):
            text = _strip(text, argument, longest=rest.startswith("##"), front=True)
        elif rest.startswith("%"):
            text = _strip(text, argument, longest=rest.startswith("%%"), front=False)
        elif rest.startswith("/"):
            old, _, new = argument.partition("/")
            text = re.sub(_regex(old), lambda _: new, text, count=0 if rest.startswith("//") else 1)
        elif rest.startswith(":"):
            start, _, length = rest[1:].partition(":")
            at = int(self.arithmetic(start, line).text or 0)
            text = text[at:] if not length else text[at:][: int(self.arithmetic(length, line).text or 0)]
        else:
            return Text("", value.doubts | {Doubt(f"the expansion {rest!r} is not known here")})
        return Text(text, value.doubts)


def _split(value: Text) -> list[str]:
    """Unquoted: split at blanks; empty text vanishes, unless a doubt has to survive."""
    return [value.text] if value.whole else value.text.split() or ([""] if value.doubts else [])


def _regex(pattern: str) -> str:
    return fnmatch.translate(pattern).removeprefix("(?s:").removesuffix(")\\Z").removesuffix(r")\z")


def _strip(text: str, pattern: str, *, longest: bool, front: bool) -> str:
    cuts = range(len(text) + 1)
    fits = [
        cut
        for cut in cuts
        if re.fullmatch(_regex(pattern), text[:cut] if front else text[len(text) - cut :], re.DOTALL)
    ]
    if not fits:
        return text
    cut = max(fits) if longest else min(fits)
    return text[cut:] if front else text[: len(text) - cut]
