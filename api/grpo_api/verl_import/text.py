"""The job as YAML text, and the key table as Markdown."""

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from grpo_api.verl_import.keys import KEYS
from grpo_api.verl_import.model import Report, show
from grpo_api.verl_import.not_carried import NOT_CARRIED

# Words that YAML 1.1, which kubectl reads, takes for a bool, a number or a time, and YAML 1.2 does not.
_YAML11 = re.compile(
    r"y|n|yes|no|on|off|[-+]?0[0-7_]+|[-+]?0b[01_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[-+]?[0-9_]+(\.[0-9_]*)?"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*",
    re.IGNORECASE,
)


def dump_job(job: dict[str, Any], report: Report | None = None, origin: str = "") -> str:
    """YAML that kubectl (YAML 1.1) and grpoctl (YAML 1.2) read alike; placeholders are listed at its top."""
    yaml = YAML()
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    buffer = io.StringIO()
    yaml.dump(_quoted(job), buffer)
    head = f"# Made by `grpoctl import verl`{' from ' + origin if origin else ''}.\n"
    for path, text in report.placeholders if report else ():
        head += f"# PLACEHOLDER {path}: {' '.join(text.split())}\n"
    for item in report.changed if report else ():
        head += f"# Otherwise than in verl: {' '.join(item.setting.shown.split())}: {' '.join(item.reason.split())}\n"
    return head + buffer.getvalue()


def _quoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {_quoted(key): _quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    if not isinstance(value, str):
        return value
    if "\n" in value and _literal(value):
        return LiteralScalarString(value)
    return DoubleQuotedScalarString(value) if _YAML11.fullmatch(value) else value


def _literal(text: str) -> bool:
    """Whether a literal block gives the text back: it holds no control character, and no line of it ends in a blank."""
    lines = text.split("\n")
    return all(line.isprintable() or line.replace("\t", "").isprintable() for line in lines) and not text[:1].isspace()


def key_table() -> str:
    """docs/verl.md's tables."""
    rows = ["| verl | GRPOJob | verl's default | |", "|---|---|---|---|"]
    for key in KEYS:
        field = key.path if key.path.startswith("metadata") else f"spec.{key.path}"
        default = "" if key.default is None else f"`{show(key.default)}`"
        notes = [key.doc] if key.doc else []
        words = [f"{old}: {new}" for old, new in (key.choices or {}).items() if old != new]
        if words:
            notes.append(", ".join(words))
        if key.instead:
            notes.append(f"any other: {key.instead}")
        if key.aliases:
            notes.append("also " + ", ".join(f"`{alias}`" for alias in key.aliases))
        rows.append(f"| `{key.verl}` | `{field}` | {default} | {'; '.join(notes)} |")
    rows += ["", "| not carried | why | what is done where it is set |", "|---|---|---|"]
    groups: dict[tuple[str, str], list[str]] = {}
    for item in NOT_CARRIED:
        groups.setdefault((item.reason, item.instead), []).append(item.pattern)
    for (reason, instead), patterns in groups.items():
        rows.append(f"| {', '.join(f'`{pattern}`' for pattern in patterns)} | {reason} | {instead} |")
    return "\n".join(rows) + "\n"
