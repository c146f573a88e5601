"""The CustomResourceDefinition, generated from the models.

A structural schema refuses `$ref`, `anyOf` with null, numeric `exclusiveMinimum`, `const`, `title`, and
`additionalProperties: false` beside `properties`; this module turns pydantic's JSON schema into one.
"""

import json
from typing import Any

from pydantic import BaseModel

from grpo_api.base import FROZEN, cel, unchanged
from grpo_api.job import JOB_NAME_RULE, GRPOJobSpec
from grpo_api.names import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from grpo_api.spec.reserved import RESERVED
from grpo_api.status import GRPOJobStatus

CEL_WORDS = frozenset({"true", "false", "null", "in"})
"""Names that CEL writes between underscores."""

_COLUMNS = [
    {"name": "State", "type": "string", "jsonPath": ".status.state"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "Progress", "type": "string", "jsonPath": ".status.progress.percent"},
    {"name": "Reward", "type": "number", "jsonPath": ".status.progress.rewardMean"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.nodes.summary"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Reason", "type": "string", "jsonPath": ".status.reason", "priority": 1},
    {"name": "Gang", "type": "string", "jsonPath": ".status.gang.backend", "priority": 1},
    {"name": "Queue", "type": "string", "jsonPath": ".spec.gangScheduling.queue", "priority": 1},
    {"name": "Tokens/s", "type": "number", "jsonPath": ".status.progress.tokensPerSecond", "priority": 1},
]


def crd() -> dict[str, Any]:
    """The manifest, as a dict in the order in which people read it."""
    spec = _refuse_reserved(_rules_for_patterns(_explained(structural_schema(GRPOJobSpec))))
    frozen = [name for name, section in spec["properties"].items() if FROZEN.items() <= section.items()]
    root = {
        "description": "GRPOJob trains a language model with GRPO on a gang of GPU pods.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _with_whole_objects(_without_defaults(structural_schema(GRPOJobStatus))),
        },
        "x-kubernetes-validations": [JOB_NAME_RULE, unchanged(frozen)],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _COLUMNS,
                }
            ],
        },
    }


def _refuse_reserved(spec: dict[str, Any]) -> dict[str, Any]:
    """Fields that exist only to be refused with a reason, where the API server would say "unknown field"."""
    for reserved in RESERVED:
        holder = spec["properties"][reserved.section] if reserved.section else spec
        description = f"Always refused: {reserved.message}."
        holder["properties"][reserved.name] = {**reserved.schema, "description": description}
        word = reserved.name in CEL_WORDS
        name = f"__{reserved.name}__" if word else reserved.name
        rule = cel(f"!has(self.{name})", reserved.message, **({} if word else {"fieldPath": f".{name}"}))
        holder["x-kubernetes-validations"] = [*holder.get("x-kubernetes-validations", []), rule]
    return spec


def _rules_for_patterns(node: dict[str, Any]) -> dict[str, Any]:
    """Without the patterns of nodes whose CEL rules say the same in words; the pattern's message would come first."""
    kept = {key: value for key, value in node.items() if key != "pattern" or "x-kubernetes-validations" not in node}
    if "properties" in kept:
        kept["properties"] = {name: _rules_for_patterns(child) for name, child in kept["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _rules_for_patterns(kept[key])
    return kept


def bounds(node: dict[str, Any]) -> str:
    """Bounds in words; those of a list's items after those of the list."""
    parts: list[str] = []
    if node.get("x-kubernetes-int-or-string"):
        rules = " ".join(rule["message"] for rule in node.get("x-kubernetes-validations", []))
        parts.append(">= 1 byte" if "one byte" in rules else ">= 0")
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None:
        parts.append(f"{'>' if node.get('exclusiveMinimum') else '>='} {low:,}")
    if high is not None:
        parts.append(f"{'<' if node.get('exclusiveMaximum') else '<='} {high:,}")
    for least, most, unit in (
        ("minLength", "maxLength", "characters"),
        ("minItems", "maxItems", "entries"),
        ("minProperties", "maxProperties", "entries"),
    ):
        smallest, largest = node.get(least), node.get(most)
        if smallest == largest and largest is not None:
            parts.append(f"{largest:,} {unit}")
        elif largest is not None:
            parts.append(f"{smallest:,} to {largest:,} {unit}" if smallest else f"at most {largest:,} {unit}")
    if "pattern" in node and not node.get("x-kubernetes-int-or-string"):
        parts.append(f"`{node['pattern']}`")
    items = node.get("items")
    if items and "properties" not in items and "enum" not in items and (each := bounds(items)):
        parts.append(f"each {each}")
    return ", ".join(parts)


def _explained(node: dict[str, Any]) -> dict[str, Any]:
    """With default and bounds in every description, as `kubectl explain` shows nothing else."""
    node = dict(node)
    facts = [] if node.get("default") in (None, {}, []) else [f"default {json.dumps(node['default'])}"]
    if (limits := bounds(node)) and ("pattern" not in node or node.get("x-kubernetes-int-or-string")):
        facts.append(limits)
    if facts and "description" in node:
        node["description"] = f"{node['description']} ({', '.join(facts)})"
    if "properties" in node:
        node["properties"] = {name: _explained(child) for name, child in node["properties"].items()}
    if isinstance(node.get("items"), dict):
        node["items"] = {**node["items"], **{k: v for k, v in _explained(node["items"]).items() if k == "properties"}}
    return node


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Structural schema of one model, by camelCase names."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})
    return _structural(schema, definitions, ())


def _structural(node: dict[str, Any], definitions: dict[str, Any], parents: tuple[str, ...]) -> dict[str, Any]:
    node = dict(node)
    if "description" in node:
        node["description"] = " ".join(node["description"].split())  # kubectl wraps lines itself
    if reference := node.pop("$ref", None):
        name = reference.removeprefix("#/$defs/")
        if name in parents:
            raise ValueError(f"{name} refers to itself; a structural schema cannot")
        target = _structural(definitions[name], definitions, (*parents, name))
        rules = target.get("x-kubernetes-validations", []) + node.get("x-kubernetes-validations", [])
        node = {**target, **node}
        if rules:
            node["x-kubernetes-validations"] = rules
        return node
    if options := node.pop("anyOf", None):
        if node.get("x-kubernetes-int-or-string"):
            node["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        else:
            kept = [option for option in options if option.get("type") != "null"]
            if len(kept) != 1:
                raise ValueError(f"a structural schema cannot hold this union: {options}")
            node = {**kept[0], **node}
            if node.get("default", ...) is None:
                del node["default"]
            return _structural(node, definitions, parents)
    for key in ("title", "additionalProperties"):
        if key == "title" or node.get(key) in (False, True):
            node.pop(key, None)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            node[bound], node[exclusive] = node[exclusive], True
    if properties := node.get("properties"):
        required = node.get("required", [])
        node["properties"] = {
            key: _with_object_default(value, _structural(value, definitions, parents), key in required)
            for key, value in properties.items()
        }
    if isinstance(items := node.get("items"), dict):
        node["items"] = _structural(items, definitions, parents)
    if isinstance(values := node.get("additionalProperties"), dict):
        node["additionalProperties"] = _structural(values, definitions, parents)
    return node


def _with_object_default(source: dict[str, Any], node: dict[str, Any], required: bool) -> dict[str, Any]:
    """A section that may be left out defaults to `{}`, so that the API server fills in its fields' defaults."""
    if "$ref" in source and not required and node.get("type") == "object":
        node["default"] = {}
    return node


def _with_whole_objects(status: dict[str, Any]) -> dict[str, Any]:
    """The operator alone writes a status: nobody asks who owns which field of `progress`."""
    properties = {
        name: {**node, "x-kubernetes-map-type": "atomic"} if node["type"] == "object" else node
        for name, node in status["properties"].items()
    }
    return {**status, "properties": properties}


def _without_defaults(node: dict[str, Any]) -> dict[str, Any]:
    """The API server must not invent a status."""
    plain = {key: value for key, value in node.items() if key != "default"}
    for key in ("properties",):
        if key in plain:
            plain[key] = {name: _without_defaults(child) for name, child in plain[key].items()}
    if isinstance(plain.get("items"), dict):
        plain["items"] = _without_defaults(plain["items"])
    return plain
