"""docs/reference: every field of a GRPOJob as a page, and as a JSON schema for editors."""

import json
from collections.abc import Iterator
from typing import Any

from grpo_api.crd import bounds, structural_schema
from grpo_api.job import JOB_NAME_PATTERN, JOB_NAME_RULE, GRPOJobSpec
from grpo_api.names import API_VERSION, KIND, MAX_JOB_NAME_LENGTH

Node = dict[str, Any]

SCHEMA_FILE = "grpojob.schema.json"
_TEXT = """# GRPOJob: every field

`{version}`, kind `{kind}`. [GRPOJob](../grpojob.md) says how fields belong together; `kubectl explain grpojob.spec`
shows the same descriptions. Batch sizes count prompts or responses, lengths count tokens, times are seconds.

Editors complete and check a job file with [{schema}]({schema}): with the YAML language server, by a first line
such as `# yaml-language-server: $schema=PATH/{schema}`.

`metadata.name` {name}.

"required" stands where a default would; "unset" means that the description says what happens then. A field set to
null counts as unset. A quantity is a number of bytes, cores or pieces as Kubernetes writes it: `8Gi`, `500m`, `2`.
"""


def page() -> str:
    """The reference, in Markdown: one table an object, in the order of the spec."""
    spec = structural_schema(GRPOJobSpec)
    name = (
        JOB_NAME_RULE["message"]
        .removeprefix("metadata.name ")
        .removesuffix(": pods and their DNS names are made from it")
    )
    text = _TEXT.format(version=API_VERSION, kind=KIND, schema=SCHEMA_FILE, name=name)
    lines = [text, "## spec\n", *_table(spec), ""]
    for path, node in _objects(spec, "spec"):
        lines += [f"{'##' if path.count('.') == 1 else '###'} {path}\n", node["description"], "", *_table(node)]
        lines += _rules(node)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _objects(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Objects with fields of their own below a node, depth first."""
    for name, child in node["properties"].items():
        below, mark = (child["items"], "[]") if "items" in child else (child, "")
        if "properties" in below:
            # The field's own description rather than the model's: it says what the object is here.
            yield f"{path}.{name}{mark}", {**below, "description": child.get("description", "")}
            yield from _objects(below, f"{path}.{name}{mark}")


def _table(node: Node) -> list[str]:
    required = node.get("required", [])
    lines = ["| field | type | default | bounds | meaning |", "|---|---|---|---|---|"]
    for name, child in node["properties"].items():
        cells = (_type(child), _default(child, name in required), bounds(child), child["description"])
        lines.append(f"| `{name}` | " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _type(node: Node) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in node:
        return "one of " + ", ".join(f"`{value}`" for value in node["enum"])
    if "items" in node:
        return f"list of {_plural(_type(node['items']))}"
    if isinstance(values := node.get("additionalProperties"), dict):
        return f"map of {_plural(_type(values))}"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "free object"
    return str(node["type"])


def _plural(word: str) -> str:
    if word.startswith("one of"):
        return word
    return {"quantity": "quantities"}.get(word, f"{word}s")


def _default(node: Node, required: bool) -> str:
    if required:
        return "required"
    default = node.get("default")
    if default is None or default in ({}, []):
        return "" if "properties" in node and default == {} else "unset" if default is None else "empty"
    return f"`{json.dumps(default)}`"


def _rules(node: Node) -> list[str]:
    rules = [rule["message"] for rule in node.get("x-kubernetes-validations", []) if "oldSelf" not in rule["rule"]]
    return ["", *(f"- {message}" for message in rules)] if rules else []


def schema() -> str:
    """The JSON schema (draft 7, which editors know) of a whole job."""
    name = {
        "type": "string",
        "maxLength": MAX_JOB_NAME_LENGTH,
        "pattern": JOB_NAME_PATTERN,
        "description": "Name of the job, of which pods and their DNS names are made.",
    }
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": KIND,
        "description": "Trains a language model with GRPO on a gang of GPU pods.",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": KIND},
            "metadata": {"type": "object", "required": ["name"], "properties": {"name": name}},
            "spec": _for_editors(structural_schema(GRPOJobSpec)),
            "status": {"type": "object", "description": "Written by the operator."},
        },
        "additionalProperties": False,
    }
    return json.dumps(whole, indent=1) + "\n"


def _for_editors(node: Node) -> Node:
    """Plain JSON schema: no Kubernetes extensions, numeric exclusive bounds, unknown fields refused."""
    kept = {key: value for key, value in node.items() if not key.startswith("x-kubernetes-")}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if kept.pop(exclusive, False):
            kept[exclusive] = kept.pop(bound)
    if node.get("x-kubernetes-int-or-string"):
        kept["anyOf"] = [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": kept.pop("pattern")}]
    if "properties" in kept:
        kept["properties"] = {name: _for_editors(child) for name, child in kept["properties"].items()}
        kept["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _for_editors(kept[key])
    return kept
