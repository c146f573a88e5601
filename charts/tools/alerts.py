"""Alerts, as the chart's PrometheusRule template. Thresholds that depend on the user's jobs are values of the chart."""

import re
from dataclasses import dataclass
from typing import Literal

from queries import NAME_LABEL, NAMESPACE_LABEL, age, series

from grpo_api import metric_names as m
from grpo_api.metric_names import JOB_LABELS
from grpo_api.names import State

_JOB = f"{{{{ $labels.{NAMESPACE_LABEL} }}}}/{{{{ $labels.{NAME_LABEL} }}}}"
_BY_JOB = f"({', '.join(JOB_LABELS)})"
_VALUE = re.compile("<([a-zA-Z]+)>")


@dataclass(frozen=True)
class Alert:
    name: str
    expression: str
    """PromQL; `<name>` stands for prometheusRule.name of the chart's values."""
    lasts: str
    """For how long; may be such a value as well."""
    severity: Literal["warning", "critical"]
    summary: str
    description: str
    """What it means and what to do, in Prometheus' template language."""


def _in_state(*states: State, offset: str = "") -> str:
    """1 for each job that is in one of these states (or was, so long ago)."""
    jobs = series(m.JOB_INFO, f'state=~"{"|".join(states)}"')
    return f"max by {_BY_JOB} ({jobs}{f' offset {offset}' if offset else ''})"


def _while_running(expression: str) -> str:
    return f"{expression} and on {_BY_JOB} {_in_state(State.RUNNING)}"


ALERTS = [
    Alert(
        "GRPOJobStalled",
        _while_running(f"{age(m.LAST_STEP_TIMESTAMP)} > <stalledSeconds>"),
        "1m",
        "critical",
        f"{_JOB} has finished no step for {{{{ $value | humanizeDuration }}}}",
        "The pods run but training stands still. Read the trainer's log; a hung reward function, collective or "
        "storage is the usual cause. Deleting a pod restarts the gang from the newest checkpoint.",
    ),
    Alert(
        "GRPOJobFailed",
        f"{_in_state(State.FAILED)} unless on {_BY_JOB} {_in_state(State.FAILED, offset='1h')}",
        "0m",
        "warning",
        f"{_JOB} has failed",
        "kubectl describe grpojob shows the reason and the repair.",
    ),
    Alert(
        "GRPOJobWaits",
        _in_state(State.PENDING, State.QUEUED, State.SCHEDULING, State.STARTING),
        "<pendingSeconds>s",
        "warning",
        f"{_JOB} has been waiting for its pods for long",
        "The gang is not placed or its pods do not start: kubectl describe grpojob shows what it waits for (GPUs, "
        "quota, an image, a volume).",
    ),
    Alert(
        "GRPOJobRestartsOften",
        f"max by {_BY_JOB} (delta({m.JOB_RESTARTS.name}[1h])) >= 3",
        "0m",
        "warning",
        f"{_JOB} has restarted {{{{ $value | humanize }}}} times within an hour",
        "status.restarts of the job names pod and cause of each restart.",
    ),
    Alert(
        "GRPOCheckpointStale",
        _while_running(f"{age(m.CHECKPOINT_TIMESTAMP)} > <checkpointStaleSeconds>"),
        "1m",
        "warning",
        f"{_JOB}: the newest checkpoint is {{{{ $value | humanizeDuration }}}} old",
        "A failure now would lose that much work. Lower trainer.saveFreq, or see whether the volume is full or slow.",
    ),
    Alert(
        "GRPORewardFlat",
        f"min by {_BY_JOB} (min_over_time({m.ZERO_STD_GROUPS.name}[30m])) >= 1",
        "15m",
        "warning",
        f"{_JOB}: all rewards within each group are equal",
        "Training teaches nothing: check the reward function, or make the task easier or harder.",
    ),
    Alert(
        "GRPOLossNotANumber",
        f"{m.LOSS.name} != {m.LOSS.name} or {m.GRAD_NORM.name} != {m.GRAD_NORM.name}",
        "0m",
        "critical",
        f"{_JOB}: loss or gradient norm is not a number",
        "The run is lost from here on. Resume from an earlier checkpoint with a lower learning rate.",
    ),
    Alert(
        "GRPORewardErrors",
        f"sum by ({', '.join(JOB_LABELS)}, function, cause) (increase({m.REWARD_ERRORS.name}[15m])) > 0",
        "15m",
        "warning",
        f"{_JOB}: scoring of samples keeps failing in {{{{ $labels.function }}}} ({{{{ $labels.cause }}}})",
        "Those samples are lost to training; the trainer's log shows the error.",
    ),
    Alert(
        "GRPOOperatorDown",
        f"absent({m.LEADER.name} == 1)",
        "5m",
        "critical",
        "no GRPO operator leads",
        "Running jobs go on, but nothing is started, restarted or cleaned up. Look at the operator's pods and Lease.",
    ),
    Alert(
        "GRPOOperatorReconcileErrors",
        f"sum by (error) (rate({m.RECONCILE_ERRORS.name}[10m])) > 0",
        "15m",
        "warning",
        "reconciles keep failing with {{ $labels.error }}",
        "The operator's log shows the error and the job.",
    ),
    Alert(
        "GRPOOperatorQueueSlow",
        f"max({m.QUEUE_OLDEST.name}) > 60",
        "5m",
        "warning",
        "a GRPOJob has waited {{ $value | humanizeDuration }} for its reconcile",
        "The operator cannot keep up: raise `workers`, and look at the API server's latency.",
    ),
]


def _helm(text: str) -> str:
    """The chart's values in place of `<name>`, Prometheus' own braces kept from Helm."""
    quoted = re.sub(r"{{|}}", lambda braces: f'{{{{ "{braces[0]}" }}}}', text)
    return _VALUE.sub(r"{{ int $.Values.prometheusRule.\1 }}", quoted)


def named(text: str) -> str:
    """The chart's values by their names, for people."""
    return re.sub(f"{_VALUE.pattern}s?", r"prometheusRule.\1", text)


def template() -> str:
    """templates/prometheusrule.yaml."""
    lines = [
        "{{- if .Values.prometheusRule.enabled }}",
        "apiVersion: monitoring.coreos.com/v1",
        "kind: PrometheusRule",
        "metadata:",
        '  name: {{ include "grpo-operator.fullname" . }}',
        "  namespace: {{ .Release.Namespace }}",
        "  labels:",
        '    {{- mergeOverwrite (include "grpo-operator.labels" . | fromYaml) .Values.prometheusRule.labels '
        "| toYaml | nindent 4 }}",
        "spec:",
        "  groups:",
        "    - name: grpo",
        "      rules:",
    ]
    for alert in ALERTS:
        lines += [
            f'        {{{{- if not (has "{alert.name}" .Values.prometheusRule.disabled) }}}}',
            f"        - alert: {alert.name}",
            "          expr: |-",
            f"            {_helm(alert.expression)}",
            f"          for: {_helm(alert.lasts)}",
            "          labels:",
            "            {{- merge (deepCopy .Values.prometheusRule.alertLabels) "
            f'(dict "severity" "{alert.severity}") | toYaml | nindent 12 }}}}',
            "          annotations:",
            "            summary: >-",
            f"              {_helm(alert.summary)}",
            "            description: >-",
            f"              {_helm(alert.description)}",
            "            {{- with .Values.prometheusRule.runbookUrl }}",
            f"            runbook_url: {{{{ . }}}}#{alert.name.lower()}",
            "            {{- end }}",
            "        {{- end }}",
        ]
    return "\n".join([*lines, "{{- end }}", ""])
