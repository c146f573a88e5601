"""helm, and PromQL held against a real scrape."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from local_cluster import paths

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "grpo-operator"
Object = dict[str, Any]


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    program = paths.binary("helm")
    if not program.exists():
        pytest.fail(f"{program} is missing: run `make binaries`")
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=120, check=False)
    if check and done.returncode:
        raise AssertionError(f"helm {' '.join(arguments)}\n{done.stderr}")
    return done


def render(tmp_path: Path, values: Object | None = None, release: str = "grpo-operator") -> list[Object]:
    """The chart's objects."""
    return list(YAML(typ="safe").load_all(template(tmp_path, values, release).stdout))


def template(
    tmp_path: Path, values: Object | None = None, release: str = "grpo-operator", *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values or {}))
    return helm("template", release, str(CHART), "-n", "grpo-system", "-f", str(path), check=check)


def only(objects: list[Object], kind: str, name: str = "") -> Object:
    found = [item for item in objects if item["kind"] == kind and name in ("", item["metadata"]["name"])]
    assert len(found) == 1, f"{kind} {name}: {[item['metadata']['name'] for item in found]}"
    return found[0]


@dataclass(frozen=True)
class Sample:
    name: str
    labels: dict[str, str]


def samples(text: str) -> list[Sample]:
    """Samples of a scrape in the text format."""
    families = text_string_to_metric_families(text)
    return [Sample(sample.name, dict(sample.labels)) for family in families for sample in family.samples]


def parse(expression: str) -> Any:
    """PromQL, with Grafana's interval variables filled in."""
    return promql_parser.parse(re.sub(r"\$__(rate_interval|interval|range)", "5m", expression))


def faults(expression: str, scraped: list[Sample]) -> list[str]:
    """Metrics, labels and label values of a query that the scrape does not show."""
    found: list[str] = []
    _labels(parse(expression), scraped, found)
    return found


def _labels(node: Any, scraped: list[Sample], found: list[str]) -> set[str]:
    """Labels of the node's result; what is wrong below it is added to `found`."""
    if isinstance(node, promql_parser.VectorSelector | promql_parser.MatrixSelector):
        return _selected(getattr(node, "vector_selector", node), scraped, found)
    if isinstance(node, promql_parser.AggregateExpr):
        below = _labels(node.expr, scraped, found)
        kept = set(node.modifier.labels) if node.modifier else set()
        if node.modifier and node.modifier.type != promql_parser.AggModifierType.By:
            found.append("only `by` is understood here")
        found.extend(f"{label!r} is not a label below {node}" for label in sorted(kept - below))
        return kept
    if isinstance(node, promql_parser.BinaryExpr):
        sides = [_labels(side, scraped, found) for side in (node.lhs, node.rhs)]
        matching = node.modifier.matching if node.modifier else None
        if matching is not None:
            for label in matching.labels:
                found.extend(f"{label!r} is not on both sides of {node}" for side in sides if label not in side)
        return sides[0] | sides[1]
    if isinstance(node, promql_parser.ParenExpr | promql_parser.UnaryExpr | promql_parser.SubqueryExpr):
        return _labels(node.expr, scraped, found)
    if isinstance(node, promql_parser.Call):
        return {label for argument in node.args for label in _labels(argument, scraped, found)}
    return set()


def _selected(selector: Any, scraped: list[Sample], found: list[str]) -> set[str]:
    named = [sample for sample in scraped if sample.name == selector.name]
    if not named:
        found.append(f"{selector.name} is not in the scrape")
        return set()
    labels = {label for sample in named for label in sample.labels}
    for matcher in selector.matchers.matchers:
        if matcher.name not in labels:
            found.append(f"{selector.name} has no label {matcher.name!r}")
        elif not matcher.value.startswith("$") and not any(
            _matches(matcher, sample.labels[matcher.name]) for sample in named
        ):
            found.append(f"no sample of {selector.name} matches {matcher.name}, {matcher.value!r}")
    return labels


def _matches(matcher: Any, value: str) -> bool:
    operators = promql_parser.MatchOp
    if matcher.op in (operators.Equal, operators.NotEqual):
        return (value == matcher.value) == (matcher.op == operators.Equal)
    return bool(re.fullmatch(matcher.value, value)) == (matcher.op == operators.Re)
