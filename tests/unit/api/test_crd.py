"""The generated CRD: structural, bounded, complete. The API server's own verdict is in tests/apiserver."""

from grpo_api.crd import crd
from grpo_api.job import GRPOJobSpec
from grpo_api.spec.reserved import RESERVED


def walk(node, path=""):
    yield path, node
    for key, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{key}")
    if isinstance(node.get("items"), dict):
        yield from walk(node["items"], f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from walk(node["additionalProperties"], f"{path}{{}}")


def root():
    return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_schema_is_structural():
    for path, node in walk(root()):
        assert not {"$ref", "title", "const", "$defs", "oneOf", "allOf"} & node.keys(), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert node.get("additionalProperties") not in (True, False), path
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            assert node.get(bound) in (None, True), path
        assert node.get("default", ...) is not None, path


def test_everything_in_spec_is_described():
    for path, node in walk(root()["properties"]["spec"]):
        if path and not path.endswith(("[]", "{}")):
            assert node.get("description"), path


def test_lists_and_strings_are_bounded_in_spec():
    """CEL's cost budget is computed from the bounds."""
    for path, node in walk(root()["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node, path


def test_sections_that_may_be_left_out_default_to_an_object():
    """So that the API server fills in the defaults below them, which the CEL rules read."""
    spec = root()["properties"]["spec"]
    for name in ("rollout", "ref", "algorithm", "checkpoint", "runPolicy", "template", "metrics", "gangScheduling"):
        assert spec["properties"][name]["default"] == {}
    assert set(spec["required"]) == {"model", "data", "reward", "actor", "trainer"}


def test_optional_objects_are_not_defaulted():
    spec = root()["properties"]["spec"]
    assert "default" not in spec["properties"]["checkpoint"]["properties"]["claimTemplate"]


def test_defaults_equal_those_of_the_models():
    """A default exists twice, in the CRD and in the model; they must be one."""
    section = root()["properties"]["spec"]["properties"]["rollout"]["properties"]
    for name, field in GRPOJobSpec.model_fields["rollout"].annotation.model_fields.items():
        if field.default is not None and field.default_factory is None:
            assert section[field.alias]["default"] == field.default, name


def test_printer_columns():
    names = [column["name"] for column in crd()["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert names[:5] == ["State", "Step", "Progress", "Reward", "Ready"]


def test_descriptions_hold_default_and_bounds_on_one_line():
    """`kubectl explain` shows neither, and breaks lines itself."""
    for path, node in walk(root()["properties"]["spec"]):
        assert "\n" not in node.get("description", ""), path
    rollout = root()["properties"]["spec"]["properties"]["rollout"]["properties"]
    assert rollout["n"]["description"].endswith("(default 8, >= 2, <= 4,096)")
    assert rollout["temperature"]["description"].endswith("(default 1.0, > 0, <= 2)")
    assert rollout["engine"]["description"].endswith('(default "vllm")')


def test_reserved_names_are_refused_by_rules():
    """Each is a field only so that the refusal can say why."""
    for reserved in RESERVED:
        holder = root()["properties"]["spec"]
        for part in filter(None, reserved.section.split(".")):
            holder = holder["properties"][part]
        assert reserved.name in holder["properties"]
        assert reserved.message in [rule["message"] for rule in holder["x-kubernetes-validations"]]


def test_rules_stand_in_for_patterns():
    """The API server's message of a pattern is the pattern itself."""
    for path, node in walk(root()["properties"]["spec"]):
        if "pattern" in node:
            assert "x-kubernetes-validations" not in node, path
