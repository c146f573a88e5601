"""Words and operators of a bash script, with lines. Nothing is expanded here."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grpo_api.verl_import.model import Fault, Place, VerlImportError

_OPERATORS = ("&&", "||", ";;", "|&", "&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", "<>", ">|", "((", "))")
_META = " \t\n;&|()<>"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


PartKind = Literal["text", "var", "arith", "cmd"]
Add = Callable[[PartKind, str, bool], None]


@dataclass(frozen=True)
class Part:
    """A piece of a word. `var`: what stands between `${` and `}`; `arith`: between `$((` and `))`; `cmd`: in `$()`."""

    kind: PartKind
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Token:
    kind: Literal["word", "op", "newline", "array", "end"]
    line: int
    parts: tuple[Part, ...] = ()
    text: str = ""
    """The operator; for a word, its text where it is plain and unquoted, else empty."""
    items: tuple["Token", ...] = ()
    """Words of `NAME=( ... )`; `text` is then the name with `=` or `+=`."""


class Lexer:
    def __init__(self, name: str, text: str, line: int = 1) -> None:
        self.name = name
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.at, self.line = 0, line
        self.heredocs: list[tuple[str, bool]] = []

    def fail(self, what: str, message: str, line: int | None = None) -> VerlImportError:
        return VerlImportError([Fault(Place(self.name, line or self.line), what, message)])

    def looking(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def step(self, count: int = 1) -> str:
        taken = self.text[self.at : self.at + count]
        self.line += taken.count("\n")
        self.at += count
        return taken

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while (token := self.next()).kind != "end":
            found.append(token)
        return [*found, token]

    def blanks(self) -> None:
        while self.at < len(self.text):
            if self.looking("\\\n"):
                self.step(2)
            elif self.text[self.at] in " \t":
                self.step()
            elif self.text[self.at] == "#":
                while self.at < len(self.text) and self.text[self.at] != "\n":
                    self.step()
            else:
                return

    def next(self) -> Token:
        self.blanks()
        line = self.line
        if self.at >= len(self.text):
            return Token("end", line)
        if self.looking("\n"):
            self.step()
            for end, strip in self.heredocs:
                self.skip_heredoc(end, strip)
            self.heredocs = []
            return Token("newline", line)
        fd = re.compile(r"[0-9]+(?=[<>])").match(self.text, self.at)
        if fd:
            self.step(len(fd[0]))
        if self.looking("<(") or self.looking(">("):
            self.step(2)
            self.until_parenthesis()
            return Token("word", line, (Part("text", "/dev/fd/63"),))
        for operator in (*_OPERATORS, *";&|()<>"):
            if self.looking(operator):
                self.step(len(operator))
                if operator in ("<<", "<<-"):
                    self.blanks()
                    word = self.word()
                    self.heredocs.append(("".join(part.text for part in word.parts), operator == "<<-"))
                return Token("op", line, text=operator)
        return self.word_or_array()

    def word_or_array(self) -> Token:
        line = self.line
        found = ASSIGNMENT.match(self.text, self.at)
        if found and self.text[found.end() : found.end() + 1] == "(":
            self.step(found.end() - self.at + 1)
            items: list[Token] = []
            while True:
                token = self.next()
                if token.kind == "op" and token.text in (")", "))"):
                    if token.text == "))":
                        self.at -= 1
                    return Token("array", line, text=found[0], items=tuple(items))
                if token.kind == "end":
                    raise self.fail(f"{found[0]}(", "has no closing parenthesis; close the array", line)
                if token.kind == "word":
                    items.append(token)
                elif token.kind != "newline":
                    raise self.fail(f"{found[0]}(", f"holds {token.text!r}; put it in quotes", token.line)
        return self.word()

    def word(self) -> Token:
        line = self.line
        parts: list[Part] = []
        plain = ""

        def add(kind: PartKind, text: str, quoted: bool) -> None:
            nonlocal plain
            if kind == "text" and parts and parts[-1].kind == "text" and parts[-1].quoted == quoted:
                parts[-1] = Part("text", parts[-1].text + text, quoted)
            else:
                parts.append(Part(kind, text, quoted))

        while self.at < len(self.text):
            char = self.text[self.at]
            if self.looking("\\\n"):
                self.step(2)
            elif char in _META:
                break
            elif char == "\\":
                self.step()
                add("text", self.step(), True)
            elif char == "'":
                add("text", self.single(), True)
            elif self.looking("$'"):
                self.step()
                add("text", self.single().encode().decode("unicode_escape"), True)
            elif char == '"':
                self.double(add)
            elif char in "$`":
                self.dollar(add, False)
            else:
                add("text", self.step(), False)
        plain = parts[0].text if len(parts) == 1 and parts[0].kind == "text" and not parts[0].quoted else ""
        return Token("word", line, tuple(parts), plain)

    def single(self) -> str:
        line = self.line
        self.step()
        end = self.text.find("'", self.at)
        if end < 0:
            raise self.fail("'", "this quote is never closed; close it", line)
        return self.step(end - self.at + 1)[:-1]

    def double(self, add: Add) -> None:
        line = self.line
        self.step()
        if self.looking('"'):
            add("text", "", True)  # "" is an empty word, and "$@" may be none
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.step()
                return
            if self.looking("\\\n"):
                self.step(2)
            elif char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                self.step()
                add("text", self.step(), True)
            elif char in "$`":
                self.dollar(add, True)
            else:
                add("text", self.step(), True)
        raise self.fail('"', "this quote is never closed; close it", line)

    def dollar(self, add: Add, quoted: bool) -> None:
        line = self.line
        if self.looking("`"):
            self.step()
            end = self.text.find("`", self.at)
            if end < 0:
                raise self.fail("`", "this backquote is never closed; close it", line)
            add("cmd", self.step(end - self.at + 1)[:-1], quoted)
        elif self.looking("$(("):
            self.step(3)
            inner = self.until_parenthesis()
            if not self.looking(")"):
                raise self.fail(f"$(({inner}", "is no arithmetic; close it with ))", line)
            self.step()
            add("arith", inner, quoted)
        elif self.looking("$("):
            self.step(2)
            add("cmd", self.until_parenthesis(), quoted)
        elif self.looking("${"):
            self.step(2)
            add("var", self.until_brace(quoted), quoted)
        elif found := (
            _NAME.match(self.text, self.at + 1) or re.compile(r"[0-9@*#?$!-]").match(self.text, self.at + 1)
        ):
            self.step(1 + len(found[0]))
            add("var", found[0], quoted)
        else:
            add("text", self.step(), quoted)

    def until_brace(self, quoted: bool) -> str:
        """Up to the brace that closes `${`; quotes and inner expansions are stepped over. Within double quotes an
        apostrophe is text."""
        start, line = self.at, self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "}":
                return self.text[start : self.step_end()]
            if quoted and char == "'":
                self.step()
            else:
                self.skip_one(char)
        raise self.fail("${" + self.text[start : start + 30], "has no closing brace; close it", line)

    def until_parenthesis(self) -> str:
        start, line, depth = self.at, self.line, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")" and depth == 0:
                return self.text[start : self.step_end()]
            depth += {"(": 1, ")": -1}.get(char, 0)
            self.skip_one(char)
        raise self.fail("$(" + self.text[start : start + 30], "has no closing parenthesis; close it", line)

    def step_end(self) -> int:
        self.step()
        return self.at - 1

    def skip_one(self, char: str) -> None:
        if char == "\\":
            self.step(2)
        elif char == "'":
            self.single()
        elif char == '"':
            self.double(_ignore)
        elif char == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{"):
            self.dollar(_ignore, True)
        else:
            self.step()

    def skip_heredoc(self, end: str, strip: bool) -> None:
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            row = self.step((stop if stop >= 0 else len(self.text)) - self.at + 1).rstrip("\n")
            if (row.lstrip("\t") if strip else row) == end:
                return


def _ignore(kind: PartKind, text: str, quoted: bool) -> None:
    """Takes the parts of a text that is only stepped over."""


def bare_parts(name: str, text: str, line: int, *, quoted: bool = False) -> tuple[Part, ...]:
    """The parts of the word of an expansion, such as `b c` of `${a:-b c}`: blanks belong to it.

    `quoted`: the expansion stands within double quotes, where an apostrophe is text.
    """
    lexer = Lexer(name, text, line)
    parts: list[Part] = []

    def add(kind: PartKind, inner: str, _: bool) -> None:
        parts.append(Part(kind, inner, quoted))

    while lexer.at < len(lexer.text):
        char = lexer.text[lexer.at]
        if quoted and char in "$`":
            lexer.dollar(add, True)
        elif quoted and char == '"':
            lexer.step()
        elif quoted and char == "\\" and lexer.text[lexer.at + 1 : lexer.at + 2] in ('"', "\\", "$", "`", "}"):
            lexer.step()
            add("text", lexer.step(), True)
        elif quoted or char in _META:
            add("text", lexer.step(), quoted)
        else:
            parts.extend(lexer.word().parts)
    return tuple(parts)
