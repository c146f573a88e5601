"""What the stages of the import hand to each other: sources in, settings between, faults and the report out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Reader = Callable[[str], str | None]
"""Gives the text of a file that the input names, or None where it cannot be read."""


@dataclass(frozen=True)
class Place:
    """Where a text stands."""

    source: str
    """File name, or `command line`."""
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}, line {self.line}"


@dataclass(frozen=True)
class Source:
    """One input: a file's text, or one `key=value` of the command line."""

    name: str
    text: str
    kind: Literal["yaml", "shell", "override"]

    @staticmethod
    def file(name: str, text: str) -> "Source":
        """A file; its suffix decides whether it is a script, else its first line, else what it holds."""
        lower, lines = name.lower(), text.removeprefix("\ufeff").splitlines()
        if lower.endswith((".yaml", ".yml", ".json")):
            return Source(name, text, "yaml")
        shell = lower.endswith((".sh", ".bash")) or (bool(lines) and lines[0].startswith("#!")) or "main_ppo" in text
        return Source(name, text, "shell" if shell else "yaml")

    @staticmethod
    def override(text: str) -> "Source":
        return Source("command line", text, "override")


@dataclass(frozen=True)
class Doubt:
    """Why a text of a shell script may not be what bash would make of it."""

    text: str
    unset: bool = False
    """An unset variable: bash takes it as empty, so that tests on it can be decided."""


@dataclass(frozen=True)
class Setting:
    """One verl key with its value as written (interpolations not yet resolved)."""

    key: str
    value: Any
    place: Place
    doubts: tuple[Doubt, ...] = ()
    deleted: bool = False
    """`~key`: verl's default is taken away, too."""

    @property
    def shown(self) -> str:
        """`key=value`, short."""
        return f"~{self.key}" if self.deleted else f"{self.key}={show(self.value)}"


def show(value: Any) -> str:
    """A value as a verl user would write it, at most 80 characters."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Fault:
    """A reason why there is no job: the place, the key with its value, and the repair."""

    place: Place | None
    what: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}: {self.message}" if self.place else f"{self.what}: {self.message}"


class VerlImportError(ValueError):
    """Input that makes no GRPOJob; holds every fault found."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(map(str, self.faults)))


@dataclass(frozen=True)
class Carried:
    setting: Setting
    path: str
    """Field of the GRPOJob, such as `spec.rollout.n`."""
    note: str = ""


@dataclass(frozen=True)
class Default:
    key: str
    value: Any
    path: str
    note: str = ""


@dataclass(frozen=True)
class Left:
    """A setting that has no field in the job."""

    setting: Setting
    reason: str


@dataclass
class Report:
    """What became of every setting. Each is in exactly one of `carried`, `changed`, `not_applicable` and `unknown`."""

    carried: list[Carried] = field(default_factory=list)
    defaults: list[Default] = field(default_factory=list)
    """Defaults of verl that are written into the job because ours differ."""
    changed: list[Left] = field(default_factory=list)
    """Settings without which the job trains otherwise than verl, and what is done instead."""
    placeholders: list[tuple[str, str]] = field(default_factory=list)
    """(path, what to put there)."""
    unknown: list[Left] = field(default_factory=list)
    not_applicable: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Choices that the import made: branches of a script, values that a later one replaced, settings to look at."""

    def lines(self) -> list[str]:
        """The report as text, the parts that ask for action first."""
        parts: list[tuple[str, list[str]]] = [
            ("trains otherwise than verl", [_left(item) for item in self.changed]),
            ("placeholders, to be filled in", [f"{path}: {text}" for path, text in self.placeholders]),
            ("unknown to us", [_left(item) for item in self.unknown]),
            ("look at", self.notes),
            ("not applicable here", _grouped(self.not_applicable)),
            (
                "defaults of verl, written out",
                [f"{d.key}={show(d.value)} -> {d.path}{_note(d.note)}" for d in self.defaults],
            ),
            (
                "carried",
                [f"{c.setting.shown} ({c.setting.place}) -> {c.path}{_note(c.note)}" for c in self.carried],
            ),
        ]
        found: list[str] = []
        for title, items in parts:
            if items:
                found += [f"{title}:", *(f"  {item}" for item in items)]
        return found

    def summary(self) -> str:
        return (
            f"{len(self.carried)} carried, {len(self.defaults)} defaults written, {len(self.changed)} changed, "
            f"{len(self.not_applicable)} not applicable, {len(self.unknown)} unknown, "
            f"{len(self.placeholders)} placeholders"
        )


def _left(item: Left) -> str:
    return f"{item.setting.shown} ({item.setting.place}): {item.reason}"


def _grouped(items: Iterable[Left]) -> list[str]:
    """One line a reason: verl's whole configuration has hundreds of such keys."""
    groups: dict[str, list[str]] = {}
    for item in items:
        groups.setdefault(item.reason, []).append(f"{item.setting.shown} ({item.setting.place})")
    return [f"{reason}: {', '.join(settings)}" for reason, settings in groups.items()]


def _note(text: str) -> str:
    return f"; {text}" if text else ""
