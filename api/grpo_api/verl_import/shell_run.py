"""What a script that starts verl would start it with. Nothing is executed: assignments, tests and arrays are followed,
other commands are stepped over, and a test that depends on one counts as false (and is noted)."""

import fnmatch
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_api.verl_import.hydra import OVERRIDE, parse_override
from grpo_api.verl_import.model import Fault, Place, Setting, VerlImportError
from grpo_api.verl_import.shell_expand import Scope, Text, joined
from grpo_api.verl_import.shell_lex import ASSIGNMENT, Part, Token
from grpo_api.verl_import.shell_parse import (
    Arithmetic,
    Block,
    Case,
    Command,
    For,
    Function,
    If,
    Joined,
    Loop,
    Not,
    Parser,
    Pipe,
)

_ENTRY = re.compile(r"(.*[./])?(main_\w+|verl\.trainer\.\w+)(\.py)?")
_DECLARE = ("export", "declare", "local", "readonly", "typeset")
_QUIET = ("echo", "printf", "set", "shopt", "mkdir", "cd", "pushd", "popd", "sleep", "ulimit", "trap", "wait", "unset")
_MAX_STEPS = 20_000


class _End(Exception):
    """exit or return."""


class Launch:
    """One command that starts verl."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.words: list[tuple[Text, int]] = []


@dataclass
class Script:
    """What a script gives verl."""

    settings: list[Setting] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    """`name` and `path` of Hydra's `--config-name` and `--config-path`."""


def read_script(name: str, text: str, env: Mapping[str, str]) -> Script:
    """What the script's command that starts verl is given. `env`: the environment it would run in."""
    runner = _Runner(name, env)
    runner.run(Parser(name, text).script())
    if not runner.launches:
        raise VerlImportError([Fault(Place(name, runner.ended), name, _no_launch(runner))])
    launch = runner.launches[0]
    for other in runner.launches[1:]:
        runner.note(other.line, f"a second command starts verl; only the one in line {launch.line} is read")
    script = Script(notes=runner.notes)
    faults: list[Fault] = []
    for at, (word, line) in enumerate(launch.words):
        doubts = tuple(sorted(word.doubts, key=lambda doubt: doubt.text))
        if config := re.fullmatch(r"--config-(name|path|dir)(=(.*))?", word.text):
            after = launch.words[at + 1][0].text if config[2] is None and at + 1 < len(launch.words) else ""
            script.config["name" if config[1] == "name" else "path"] = config[3] or after
            continue
        if word.text.startswith("-") or not word.text.strip():
            if word.text.strip() or doubts:
                what = word.text or "an empty argument"
                runner.note(line, f"{what}: left out" + "".join(f" ({doubt.text})" for doubt in doubts))
            continue
        if not OVERRIDE.match(word.text) or not ("=" in word.text or word.text.startswith("~")):
            runner.note(line, f"{word.text}: is no key=value, left out")
            continue
        try:
            script.settings += parse_override(word.text, Place(name, line), doubts)
        except VerlImportError as error:
            faults += error.faults
    if faults:
        raise VerlImportError(faults)
    return script


def _no_launch(runner: "_Runner") -> str:
    if runner.ended:
        return "the script ends here, before it starts verl; set the variables it asks for in the environment"
    return "no command of the script starts verl, such as `python3 -m verl.trainer.main_ppo key=value ...`"


class _Runner:
    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.notes: list[str] = []
        self.launches: list[Launch] = []
        self.ended: int | None = None
        self.functions: dict[str, Any] = {}
        self.steps = 0
        self.depth = 0
        self.scope = Scope(name, env, self.note)
        self.scope.variables["BASH_SOURCE"] = Text(name)

    def note(self, line: int, text: str) -> None:
        entry = f"{Place(self.name, line)}: {text}"
        if entry not in self.notes:
            self.notes.append(entry)

    def run(self, block: Block) -> None:
        with suppress(_End):
            self.do(block)

    def do(self, node: Any) -> bool | None:
        """Run one node; its status, None where only a real shell could tell."""
        self.steps += 1
        self.depth += 1
        if self.steps > _MAX_STEPS or self.depth > 200:
            raise VerlImportError([Fault(Place(self.name), self.name, "does too much; give the key=value words alone")])
        try:
            return self.dispatch(node)
        finally:
            self.depth -= 1

    def dispatch(self, node: Any) -> bool | None:
        if isinstance(node, Block):
            status: bool | None = True
            for item in node.items:
                status = self.do(item)
            return status
        if isinstance(node, Joined):
            left = self.do(node.left)
            if left is None or left == (node.operator == "||"):
                return left
            return self.do(node.right)
        if isinstance(node, Not):
            inner = self.do(node.inner)
            return None if inner is None else not inner
        if isinstance(node, Pipe):
            self.do(node.inner)
            return None
        if isinstance(node, If):
            return self.if_(node)
        if isinstance(node, Case):
            return self.case(node)
        if isinstance(node, For):
            return self.for_(node)
        if isinstance(node, Loop):
            self.note(node.line, "this loop is not run")
            return None
        if isinstance(node, Function):
            self.functions[node.name] = node.body
            return True
        if isinstance(node, Arithmetic):
            value = self.scope.arithmetic(node.text, node.line)
            return value.text != "0" if value.decidable else None
        return self.command(node)

    def if_(self, node: If) -> bool | None:
        for test, body in node.branches:
            status = self.do(test)
            if status is None:
                self.note(node.line, "this test cannot be decided without running the script; taken as false")
            elif status:
                return self.do(body)
        return self.do(node.otherwise) if node.otherwise else True

    def case(self, node: Case) -> bool | None:
        subject = self.scope.text(node.subject)
        if not subject.decidable:
            why = ", ".join(sorted(doubt.text for doubt in subject.doubts))
            self.note(node.line, f"this case cannot be decided ({why}); only its * branch is read")
        for patterns, body in node.branches:
            for pattern in patterns:
                glob = _glob(self.scope, pattern)
                if glob == "*" or (subject.decidable and fnmatch.fnmatchcase(subject.text, glob)):
                    return self.do(body)
        return True

    def for_(self, node: For) -> bool | None:
        words = self.scope.arguments if node.words is None else [f for w in node.words for f in self.scope.fields(w)]
        if not all(word.decidable for word in words):
            self.note(node.line, "this loop is not run")
            return None
        for word in words:
            self.scope.variables[node.name] = word
            self.do(node.body)
        return True

    def assign(self, token: Token) -> None:
        if token.kind == "array":
            name = token.text.rstrip("+=")
            value = [
                replace(text, line=text.line or item.line) for item in token.items for text in self.scope.fields(item)
            ]
            before: list[Text] = self.scope.elements(name) if token.text.endswith("+=") else []
            self.scope.variables[name] = [*before, *value]
            return
        found = ASSIGNMENT.match(token.parts[0].text)
        assert found is not None
        first = Part("text", token.parts[0].text[found.end() :])
        made = self.scope.parts((first, *token.parts[1:]), token.line)
        held, before = self.scope.variables.get(found[1]), self.scope.elements(found[1])
        made = joined([before[0], made]) if found[2] and before else Text(made.text, made.doubts)
        self.scope.variables[found[1]] = [made, *before[1:]] if isinstance(held, list) and found[2] else made

    def command(self, node: Command) -> bool | None:
        for token in node.assignments:
            self.assign(token)
        if not node.words:
            return True
        head = node.words[0].text
        if head in _DECLARE:
            for token in node.words[1:]:
                begins = token.kind == "array" or (token.parts[0].kind == "text" and not token.parts[0].quoted)
                if begins and ASSIGNMENT.match(token.text or token.parts[0].text):
                    self.assign(token)
            return True
        if head == "[[" or head in ("[", "test"):
            return self.test(node.words[1:] if head == "test" else node.words[1:-1], pattern=head == "[[")
        fields = [
            (text, text.line or token.line)
            for token in node.words
            if token.kind == "word"
            for text in self.scope.fields(token)
        ]
        if not fields:
            return True
        head = fields[0][0].text
        entry = next((i for i, (text, _) in enumerate(fields) if _is_entry(fields, i, text)), None)
        if entry is not None:
            launch = Launch(node.line)
            launch.words = fields[entry + 1 :]
            self.launches.append(launch)
            return None
        return self.builtin(head, fields, node)

    def builtin(self, head: str, fields: list[tuple[Text, int]], node: Command) -> bool | None:
        if head in ("true", ":"):
            return True
        if head == "false":
            return False
        if head in ("exit", "return"):
            self.ended = node.line if head == "exit" else self.ended
            raise _End
        if head == "shift":
            count = int(fields[1][0].text) if len(fields) > 1 and fields[1][0].text.isdigit() else 1
            self.scope.arguments = self.scope.arguments[count:]
            return True
        if head in self.functions:
            before = self.scope.arguments
            self.scope.arguments = [text for text, _ in fields[1:]]
            try:
                return self.do(self.functions[head])
            except _End:
                if self.ended is not None:
                    raise
                return None
            finally:
                self.scope.arguments = before
        if head in ("source", ".", "eval"):
            self.note(node.line, f"`{' '.join(text.text for text, _ in fields)}` is not run; what it sets is not known")
        elif "." in head and OVERRIDE.match(head) and "=" in head:
            more = f" and {len(fields) - 1} words after it" if len(fields) > 1 else ""
            text = (
                f"{head}{more} stand outside the command, which a comment or a missing \\ ended; not read, as in bash"
            )
            self.note(node.line, text)
        return True if head in _QUIET else None

    def test(self, words: list[Token], *, pattern: bool) -> bool | None:
        """`[ ... ]`, `[[ ... ]]`: strings, numbers, -z, -n, !, -a, -o, && and ||."""
        for operator in (("||", "-o"), ("&&", "-a")):
            for at, word in enumerate(words):
                if word.text in operator and at > 0:
                    left, right = (self.test(part, pattern=pattern) for part in (words[:at], words[at + 1 :]))
                    decides = operator[0] == "||"
                    if decides in (left, right):
                        return decides
                    return None if None in (left, right) else not decides
        if words and words[0].text == "!":
            inner = self.test(words[1:], pattern=pattern)
            return None if inner is None else not inner
        if len(words) == 2 and words[0].text in ("-z", "-n"):
            text = self.scope.text(words[1])
            return (text.text == "") == (words[0].text == "-z") if text.decidable else None
        if len(words) == 1:
            text = self.scope.text(words[0])
            return bool(text.text) if text.decidable else None
        if len(words) != 3:
            return None
        left_text, right_text = self.scope.text(words[0]), self.scope.text(words[2])
        if not (left_text.decidable and right_text.decidable):
            return None
        return _compare(
            left_text.text, words[1].text, _glob(self.scope, words[2]) if pattern else None, right_text.text
        )


def _is_entry(fields: list[tuple[Text, int]], at: int, field: Text) -> bool:
    """`-m verl.trainer.main_ppo`, or a script file after python; not the word in an `echo`."""
    before = fields[at - 1][0].text if at else ""
    return bool(_ENTRY.fullmatch(field.text)) and (
        before == "-m" or bool(re.search(r"(^|/)(python[0-9.]*|torchrun)$", before))
    )


def _glob(scope: Scope, pattern: Token) -> str:
    """A pattern in which quoted text stands for itself."""
    made = ""
    for part in pattern.parts:
        text = joined(scope.part(part, pattern.line), " ").text
        made += re.sub(r"([*?\[])", r"[\1]", text) if part.quoted else text
    return made


def _compare(left: str, operator: str, glob: str | None, right: str) -> bool | None:
    if operator in ("=", "=="):
        return left == right if glob is None else fnmatch.fnmatchcase(left, glob)
    if operator == "!=":
        return left != right if glob is None else not fnmatch.fnmatchcase(left, glob)
    numbers = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
    if operator not in numbers or not all(re.fullmatch(r"-?[0-9]+", text.strip()) for text in (left, right)):
        return None
    a, b = int(left), int(right)
    return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[numbers[operator]]
