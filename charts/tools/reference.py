"""docs/metrics.md: every metric and alert."""

from alerts import ALERTS, named

from grpo_api.metric_names import JOB_LABELS, OPERATOR_METRICS, TRAINER_METRICS, Metric
from grpo_api.names import METRICS_PATH, OPERATOR_METRICS_PORT, TRAINER_METRICS_PORT

_TEXT = """# Metrics

Two endpoints in Prometheus' text format, both at `{path}`: the trainer's pods on port {trainer} (`metrics.port` of the
job), the operator on port {operator}.

```
kubectl port-forward POD {trainer} & curl -s localhost:{trainer}{path}              # POD: <job>-0, the head
kubectl -n grpo-system port-forward deploy/grpo-operator {operator} & curl -s localhost:{operator}{path}
```

With the Prometheus operator, install the chart with `serviceMonitor.enabled=true`, `podMonitor.enabled=true` and
`prometheusRule.enabled=true`; where your Prometheus selects by label, also set `serviceMonitor.labels`,
`podMonitor.labels` and `prometheusRule.labels`. Without it, scrape pods labelled `app.kubernetes.io/component=trainer`
and the Service `grpo-operator-metrics`.

The Grafana dashboard "GRPO training" comes as a ConfigMap that Grafana's sidecar finds by the label
`grafana_dashboard: "1"` (`dashboards.label`); or import `charts/grpo-operator/files/grpo.json`.

Base units; counters end in `_total`, ratios run from 0 to 1. A series appears once it has a value.

## Trainer

Every metric also carries {labels}.

{trainer_table}

## Operator

{operator_table}

## Alerts

`prometheusRule.disabled` leaves out alerts by name.
"""


def _table(metrics: list[Metric], implied: tuple[str, ...] = ()) -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels if label not in implied)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)


def text() -> str:
    """The page, in Markdown."""
    page = _TEXT.format(
        path=METRICS_PATH,
        trainer=TRAINER_METRICS_PORT,
        operator=OPERATOR_METRICS_PORT,
        labels=" and ".join(f"`{label}`" for label in JOB_LABELS),
        trainer_table=_table(TRAINER_METRICS),
        operator_table=_table(OPERATOR_METRICS),
    )
    for alert in ALERTS:
        lasts = f" for {named(alert.lasts)}" if alert.lasts != "0m" else ""
        page += (
            f"\n### {alert.name}\n\n{alert.severity.capitalize()}, when `{named(alert.expression)}` holds{lasts}. "
            f"{alert.description}\n"
        )
    return page
