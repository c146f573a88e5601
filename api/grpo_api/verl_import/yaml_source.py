"""A verl YAML file as settings, with the line of each.

By YAML 1.2, where `1e-6` is a number, as OmegaConf reads it. A key that stands twice is an error, as for verl.
"""

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from grpo_api.names import KIND
from grpo_api.verl_import.hydra import scalar
from grpo_api.verl_import.model import Fault, Place, Setting, VerlImportError

_MAX_NODES = 20_000
_TAG = "tag:yaml.org,2002:"


def read_yaml(name: str, text: str) -> list[Setting]:
    """Every leaf of the file. Lists are leaves."""
    try:
        read = YAML(typ="safe", pure=True).compose_all(text.removeprefix("\ufeff"))
        nodes = [node for node in read if node is not None and node.tag != f"{_TAG}null"]
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = Place(name, mark.line + 1 if mark else None)
        raise VerlImportError([Fault(place, "YAML", str(error.problem or error.context))]) from None
    except YAMLError as error:
        raise VerlImportError([Fault(Place(name), "YAML", str(error))]) from None
    if len(nodes) != 1 or not isinstance(nodes[0], MappingNode):
        held = "nothing" if not nodes else f"{len(nodes)} documents" if len(nodes) > 1 else "no mapping"
        raise VerlImportError([Fault(Place(name), "YAML", f"holds {held}; it must hold verl's configuration")])
    reader = _Reader(name)
    reader.mapping(nodes[0], "", ())
    if reader.faults:
        raise VerlImportError(reader.faults)
    tops = {item.key: item for item in reader.settings}
    if "kind" in tops and tops["kind"].value == KIND:
        raise VerlImportError([Fault(tops["kind"].place, f"kind={KIND}", "is a GRPOJob already, not verl's file")])
    return reader.settings


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.settings: list[Setting] = []
        self.faults: list[Fault] = []
        self.count = 0

    def place(self, node: Node) -> Place:
        return Place(self.name, node.start_mark.line + 1)

    def enter(self, node: Node, above: tuple[int, ...]) -> tuple[int, ...]:
        self.count += 1
        if id(node) in above or self.count > _MAX_NODES:
            text = "refers to itself" if id(node) in above else f"has more than {_MAX_NODES} values"
            raise VerlImportError([Fault(self.place(node), "YAML", f"{text}; write the values out")])
        return (*above, id(node))

    def mapping(self, node: MappingNode, prefix: str, above: tuple[int, ...]) -> None:
        above = self.enter(node, above)
        seen: dict[str, int] = {}
        own = {key.value for key, _ in node.value if isinstance(key, ScalarNode) and key.tag != f"{_TAG}merge"}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for merged in value.value if isinstance(value, SequenceNode) else [value]:
                    if not isinstance(merged, MappingNode):
                        self.faults.append(Fault(self.place(merged), "<<", "merges what is no mapping; remove it"))
                        continue
                    inner = [(k, v) for k, v in merged.value if not (isinstance(k, ScalarNode) and k.value in own)]
                    self.mapping(MappingNode(merged.tag, inner, merged.start_mark), prefix, above)
                continue
            if not isinstance(key, ScalarNode):
                self.faults.append(Fault(self.place(key), prefix or "YAML", "has a key that is no word"))
                continue
            path = f"{prefix}.{key.value}" if prefix else str(key.value)
            if key.value in seen:
                text = f"stands twice, first in line {seen[key.value]}; remove one"
                self.faults.append(Fault(self.place(key), path, text))
            seen[key.value] = key.start_mark.line + 1
            if isinstance(value, MappingNode) and value.value:
                self.mapping(value, path, above)
            else:
                self.settings.append(Setting(path, self.value(value, above), self.place(key)))

    def value(self, node: Node, above: tuple[int, ...]) -> Any:
        above = self.enter(node, above)
        if isinstance(node, MappingNode):
            return {str(key.value): self.value(value, above) for key, value in node.value}
        if isinstance(node, SequenceNode):
            return [self.value(item, above) for item in node.value]
        if node.tag == f"{_TAG}null":
            return None
        return scalar(node.value) if node.tag in (f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool") else node.value
