"""The tree of a bash script: commands, lists, if, case, for, functions and groups."""

from dataclasses import dataclass, field
from typing import Any

from grpo_api.verl_import.model import VerlImportError
from grpo_api.verl_import.shell_lex import ASSIGNMENT, Lexer, Part, Token

_REDIRECTIONS = ("<", ">", ">>", "<<<", "<>", ">|", "&>", "&>>", ">&", "<&")
_CLOSING = ("then", "else", "elif", "fi", "do", "done", "esac", "}")


@dataclass
class Command:
    line: int
    words: list[Token] = field(default_factory=list)
    assignments: list[Token] = field(default_factory=list)
    """Before the first word: `X=1`, or arrays."""


@dataclass
class Arithmetic:
    line: int
    text: str


@dataclass
class Joined:
    """`left && right`, `left || right`."""

    operator: str
    left: Any
    right: Any


@dataclass
class Not:
    inner: Any


@dataclass
class Pipe:
    """Only the first command of a pipe is looked at."""

    inner: Any


@dataclass
class Block:
    items: list[Any]


@dataclass
class If:
    line: int
    branches: list[tuple[Block, Block]]
    otherwise: Block | None


@dataclass
class Case:
    line: int
    subject: Token
    branches: list[tuple[list[Token], Block]]


@dataclass
class For:
    line: int
    name: str
    words: list[Token] | None
    body: Block


@dataclass
class Loop:
    """while, until, select and C-style for: not run."""

    line: int
    body: Block


@dataclass
class Function:
    line: int
    name: str
    body: Any


class Parser:
    def __init__(self, name: str, text: str, line: int = 1) -> None:
        self.lexer = Lexer(name, text, line)
        self.token = self.lexer.next()

    def fail(self, message: str) -> VerlImportError:
        what = self.token.text or "".join(part.text for part in self.token.parts) or self.token.kind
        return self.lexer.fail(repr(what), message, self.token.line)

    def next(self) -> Token:
        token = self.token
        self.token = self.lexer.next()
        return token

    def is_op(self, *texts: str) -> bool:
        return self.token.kind == "op" and self.token.text in texts

    def is_word(self, *texts: str) -> bool:
        return self.token.kind == "word" and self.token.text in texts

    def script(self) -> Block:
        block = self.block()
        if self.token.kind != "end":
            raise self.fail("stands where no command begins; check the script with `bash -n`")
        return block

    def newlines(self) -> None:
        while self.token.kind == "newline":
            self.next()

    def block(self) -> Block:
        items: list[Any] = []
        while True:
            while self.token.kind == "newline" or self.is_op(";", "&"):
                self.next()
            if self.token.kind == "end" or self.is_word(*_CLOSING) or self.is_op(")", "))", ";;"):
                return Block(items)
            items.append(self.joined())

    def joined(self) -> Any:
        left = self.pipe()
        while self.is_op("&&", "||"):
            operator = self.next().text
            self.newlines()
            left = Joined(operator, left, self.pipe())
        return left

    def pipe(self) -> Any:
        if self.is_word("!"):
            self.next()
            return Not(self.pipe())
        first = self.command()
        piped = False
        while self.is_op("|", "|&"):
            self.next()
            self.newlines()
            self.command()
            piped = True
        return Pipe(first) if piped else first

    def expect(self, word: str) -> None:
        self.newlines()
        while self.is_op(";"):
            self.next()
            self.newlines()
        if not self.is_word(word):
            raise self.fail(f"stands where {word!r} must; check the script with `bash -n`")
        self.next()

    def command(self) -> Any:
        line = self.token.line
        if self.is_op("("):
            self.next()
            found: Any = self.block()
            self.close(")")
        elif self.is_op("(("):
            found = Arithmetic(line, self.arithmetic())
        elif self.is_word("{"):
            self.next()
            found = self.block()
            self.expect("}")
        elif self.is_word("if"):
            found = self.if_(line)
        elif self.is_word("case"):
            found = self.case(line)
        elif self.is_word("for"):
            found = self.for_(line)
        elif self.is_word("while", "until", "select"):
            self.next()
            self.block()
            found = Loop(line, self.do())
        elif self.is_word("function"):
            self.next()
            found = self.function(self.next().text, line)
        else:
            return self.simple()
        while self.is_op(*_REDIRECTIONS):
            self.next()
            self.next()
        return found

    def close(self, operator: str) -> None:
        if self.is_op("))") and operator == ")":
            self.token = Token("op", self.token.line, text=")")
            return
        if not self.is_op(operator):
            raise self.fail(f"stands where {operator!r} must; check the script with `bash -n`")
        self.next()

    def arithmetic(self) -> str:
        """The text of `(( ... ))`; the current token is its `((`."""
        inner = self.lexer.until_parenthesis()
        if not self.lexer.looking(")"):
            raise self.fail("is no arithmetic; close it with ))")
        self.lexer.step()
        self.token = self.lexer.next()
        return inner

    def if_(self, line: int) -> If:
        branches: list[tuple[Block, Block]] = []
        while self.is_word("if", "elif"):
            self.next()
            test = self.block()
            self.expect("then")
            branches.append((test, self.block()))
        otherwise = None
        if self.is_word("else"):
            self.next()
            otherwise = self.block()
        self.expect("fi")
        return If(line, branches, otherwise)

    def case(self, line: int) -> Case:
        self.next()
        subject = self.next()
        self.expect("in")
        branches: list[tuple[list[Token], Block]] = []
        self.newlines()
        while not self.is_word("esac") and self.token.kind != "end":
            if self.is_op("("):
                self.next()
            patterns: list[Token] = []
            while self.token.kind == "word":
                patterns.append(self.next())
                if self.is_op("|"):
                    self.next()
            self.close(")")
            branches.append((patterns, self.block()))
            if self.is_op(";;"):
                self.next()
            self.newlines()
        self.expect("esac")
        return Case(line, subject, branches)

    def for_(self, line: int) -> Any:
        self.next()
        if self.is_op("(("):
            self.arithmetic()
            return Loop(line, self.do())
        name = self.next().text
        words: list[Token] | None = None
        self.newlines()
        if self.is_word("in"):
            self.next()
            words = []
            while self.token.kind == "word":
                words.append(self.next())
        return For(line, name, words, self.do())

    def do(self) -> Block:
        self.expect("do")
        body = self.block()
        self.expect("done")
        return body

    def function(self, name: str, line: int) -> Function:
        if self.is_op("("):
            self.next()
            self.close(")")
        self.newlines()
        return Function(line, name, self.command())

    def simple(self) -> Any:
        found = Command(self.token.line)
        test = self.is_word("[[")
        while True:
            token = self.token
            if token.kind == "array":
                (found.words if found.words else found.assignments).append(self.next())
            elif token.kind == "word":
                begins = token.parts and not token.parts[0].quoted and token.parts[0].kind == "text"
                if not found.words and begins and ASSIGNMENT.match(token.parts[0].text):
                    found.assignments.append(self.next())
                    continue
                found.words.append(self.next())
                if len(found.words) == 1 and self.is_op("("):
                    return self.function(token.text, token.line)
                if test and token.text == "]]":
                    test = False
            elif test and (token.kind == "newline" or self.is_op("&&", "||", "<", ">", "(", ")")):
                self.next()
                if token.kind == "op":
                    found.words.append(Token("word", token.line, (Part("text", token.text),), token.text))
            elif self.is_op(*_REDIRECTIONS):
                self.next()
                if self.token.kind == "word":
                    self.next()
            elif self.is_op("<<", "<<-"):
                self.next()
            elif not found.words and not found.assignments:
                raise self.fail("stands where no command begins; check the script with `bash -n`")
            else:
                return found
