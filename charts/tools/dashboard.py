"""The Grafana dashboard, built with grafana-foundation-sdk. Grafana 11 and later."""

import json
from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from queries import (
    JOB_VARIABLE,
    NAME_LABEL,
    NAMESPACE_LABEL,
    NAMESPACE_VARIABLE,
    THIS_JOB,
    THIS_NAMESPACE,
    age,
    by_job,
    series,
)

from grpo_api import metric_names as m
from grpo_api.metric_names import Metric

UID = "grpo-training"
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
JOB_LEGEND = "{{" + NAMESPACE_LABEL + "}}/{{" + NAME_LABEL + "}}"
GRID_COLUMNS = 24
Query = tuple[str, str]
"""PromQL and legend."""


def job_graph(metric: Metric, title: str, unit: str, more: str = "", **options: Any) -> timeseries.Panel:
    """A curve a job (and a value of the label `more`), described by the metric's own help."""
    legend = f"{JOB_LEGEND} {{{{{more}}}}}" if more else JOB_LEGEND
    query = by_job(metric, THIS_JOB, more=[more] if more else [])
    return graph(title, metric.help, unit, [(query, legend)], **options)


def graph(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    stacked: bool = False,
    bounds: tuple[float, float] | None = None,
    width: int = 8,
) -> timeseries.Panel:
    mode = common_models.StackingMode.NORMAL if stacked else common_models.StackingMode.NONE
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(8)
        .line_width(1)
        .fill_opacity(25 if stacked else 0)
        .stacking(common.StackingConfig().mode(mode))
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    if bounds:
        panel = panel.min(bounds[0]).max(bounds[1])
    for index, (expression, legend) in enumerate(queries):
        panel = panel.with_target(_target(index, expression, legend))
    return panel


def number(title: str, description: str, unit: str, query: str, legend: str = JOB_LEGEND) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(6)
        .height(4)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(0, query, legend))
    )


def _target(index: int, expression: str, legend: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(chr(ord("A") + index))
        .datasource(DATASOURCE)
        .expr(expression)
        .legend_format(legend)
        .range()
    )


def _quantile(share: float) -> str:
    rate = f"rate({m.RECONCILE_SECONDS.name}_bucket[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le) ({rate}))"


def _increase(metric: Metric, by: str, *selectors: str) -> Query:
    return f"sum by ({by}) (increase({series(metric, *selectors)}[$__rate_interval]))", f"{{{{{by}}}}}"


def rows() -> dict[str, list[timeseries.Panel | stat.Panel]]:
    """Panels by row."""
    phases = by_job(m.PHASE_DURATION, THIS_JOB, 'phase!="step"', more=["phase"])
    all_of_step = by_job(m.PHASE_DURATION, THIS_JOB, 'phase="step"')
    state_legend = "{{state}}"
    return {
        "Now": [
            number("Last reward", m.REWARD_MEAN.help, "short", by_job(m.REWARD_MEAN, THIS_JOB)),
            number(
                "Progress",
                "Steps done by steps planned.",
                "percentunit",
                f"{by_job(m.STEP, THIS_JOB)} / {by_job(m.TOTAL_STEPS, THIS_JOB)}",
            ),
            number("Tokens/s", m.THROUGHPUT.help, "short", by_job(m.THROUGHPUT, THIS_JOB)),
            number(
                "Since the last step",
                "Seconds since a step ended. Far above the step time: the gang is stalled or restarts.",
                "s",
                age(m.LAST_STEP_TIMESTAMP, THIS_JOB),
            ),
        ],
        "Rewards and responses": [
            graph(
                "Reward",
                "Mean and standard deviation of the last step's rewards.",
                "short",
                [
                    (by_job(m.REWARD_MEAN, THIS_JOB), f"{JOB_LEGEND} mean"),
                    (by_job(m.REWARD_STD, THIS_JOB), f"{JOB_LEGEND} std"),
                ],
            ),
            job_graph(m.REWARD_FUNCTION_MEAN, "Reward by function", "short", "function"),
            job_graph(m.ZERO_STD_GROUPS, "Groups that teach nothing", "percentunit", bounds=(0, 1)),
            graph(
                "Scoring failures by cause",
                m.REWARD_ERRORS.help,
                "short",
                [_increase(m.REWARD_ERRORS, "cause", THIS_JOB)],
            ),
            job_graph(m.RESPONSE_LENGTH, "Response length (tokens)", "short"),
            job_graph(m.TRUNCATED, "Truncated responses", "percentunit", bounds=(0, 1)),
            graph(
                "Validation",
                "Mean of the last validation's rewards by data source, and where they are 0 or 1 the share of prompts "
                "that one of k responses solves.",
                "short",
                [
                    (
                        by_job(
                            m.VAL_SCORE,
                            THIS_JOB,
                            'statistic=~"mean@.+|pass@.+"',
                            'variable="reward"',
                            more=["data_source", "statistic"],
                        ),
                        f"{JOB_LEGEND} {{{{data_source}}}} {{{{statistic}}}}",
                    )
                ],
                width=16,
            ),
            job_graph(m.OVERLONG, "Overlong prompts (rows)", "short", "data"),
            job_graph(m.REWARD_FUNCTION_STD, "Deviation of the scores by function", "short", "function"),
            graph(
                "Reward processes at work by function",
                "Processes that a reward function kept busy, on average: seconds of its calls in a second. Near "
                "reward.workers all the time: scoring holds the step up, and more workers help.",
                "short",
                [
                    (
                        f"sum by ({', '.join((NAMESPACE_LABEL, NAME_LABEL))}, function) "
                        f"(rate({series(m.REWARD_FUNCTION_SECONDS, THIS_JOB)}[$__rate_interval]))",
                        f"{JOB_LEGEND} {{{{function}}}}",
                    )
                ],
                stacked=True,
            ),
            job_graph(m.REWARD_THROUGHPUT, "Responses scored (per second)", "short"),
        ],
        "Optimization": [
            job_graph(m.KL, "KL to the reference", "short"),
            job_graph(m.ENTROPY, "Entropy (nats)", "short"),
            job_graph(m.CLIP_FRACTION, "Clipped tokens", "percentunit"),
            job_graph(m.GRAD_NORM, "Gradient norm", "short"),
            job_graph(m.LOSS, "Policy loss", "short"),
            job_graph(m.LEARNING_RATE, "Learning rate", "sci"),
            job_graph(m.ROLLOUT_MISMATCH, "Rollout and trainer log-probability difference", "short", width=24),
        ],
        "Speed": [
            graph(
                "Step time by phase",
                m.PHASE_DURATION.help,
                "s",
                [(phases, f"{JOB_LEGEND} {{{{phase}}}}")],
                stacked=True,
                width=12,
            ),
            graph("Step time", "Seconds of the last step, all phases.", "s", [(all_of_step, JOB_LEGEND)], width=6),
            job_graph(m.THROUGHPUT, "Throughput (tokens/s)", "short", width=6),
        ],
        "Memory and checkpoints": [
            graph(
                "GPU memory",
                "GPU memory allocated by torch now, and at most in the last step.",
                "bytes",
                [
                    (by_job(m.GPU_MEMORY, THIS_JOB, more=["rank"]), f"{JOB_LEGEND} {{{{rank}}}}"),
                    (by_job(m.GPU_MEMORY_PEAK, THIS_JOB, more=["rank"]), f"{JOB_LEGEND} {{{{rank}}}} peak"),
                ],
            ),
            job_graph(m.HOST_MEMORY, "Host memory", "bytes", "rank"),
            graph(
                "Checkpoint age",
                "Seconds since the newest complete checkpoint: work that a failure now would repeat.",
                "s",
                [(age(m.CHECKPOINT_TIMESTAMP, THIS_JOB), JOB_LEGEND)],
            ),
            job_graph(m.CHECKPOINT_SIZE, "Checkpoint size", "bytes", width=12),
            graph(
                "Checkpoint step",
                "Step of the newest complete checkpoint, and of the one that this attempt started from.",
                "short",
                [
                    (by_job(m.CHECKPOINT_STEP, THIS_JOB), f"{JOB_LEGEND} newest"),
                    (by_job(m.RESUMED_STEP, THIS_JOB), f"{JOB_LEGEND} resumed from"),
                ],
                width=12,
            ),
        ],
        "Operator": [
            graph(
                "Jobs by state",
                m.JOBS.help,
                "short",
                [
                    # Only the leader has jobs in its cache.
                    (
                        f"sum by (state) (max by ({NAMESPACE_LABEL}, state) ({series(m.JOBS, THIS_NAMESPACE)}))",
                        state_legend,
                    )
                ],
                stacked=True,
            ),
            graph(
                "Gang restarts by cause",
                m.RESTARTS.help,
                "short",
                [_increase(m.RESTARTS, "cause")],
            ),
            job_graph(m.JOB_RESTARTS, "Gang restarts by job", "short"),
            graph(
                "Reconcile time",
                m.RECONCILE_SECONDS.help,
                "s",
                [(_quantile(0.5), "p50"), (_quantile(0.99), "p99")],
            ),
            graph(
                "Queue",
                m.QUEUE_DEPTH.help,
                "short",
                [(f"max({m.QUEUE_DEPTH.name})", "jobs")],
            ),
            graph("Oldest item in the queue", m.QUEUE_OLDEST.help, "s", [(f"max({m.QUEUE_OLDEST.name})", "age")]),
            graph(
                "API requests",
                m.API_REQUESTS.help,
                "reqps",
                [
                    (
                        f"sum by (verb, code) (rate({m.API_REQUESTS.name}[$__rate_interval]))",
                        "{{verb}} {{code}}",
                    )
                ],
                width=12,
            ),
            graph(
                "Reconcile errors",
                m.RECONCILE_ERRORS.help,
                "short",
                [_increase(m.RECONCILE_ERRORS, "error")],
                width=12,
            ),
        ],
    }


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all", selected=True))
    )


def build() -> str:
    """The dashboard as JSON, with panel ids in reading order and no gaps in the grid."""
    made = (
        dashboard.Dashboard("GRPO training")
        .uid(UID)
        .description("Training and operator of GRPOJobs.")
        .tags(["grpo", "training"])
        .editable()
        .refresh("30s")
        .time("now-6h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        # Jobs come from the operator's list, so that one whose pods are gone can still be chosen.
        .with_variable(
            _variable(NAMESPACE_VARIABLE, "Namespace", f"label_values({m.JOB_INFO.name}, {NAMESPACE_LABEL})")
        )
        .with_variable(
            _variable(JOB_VARIABLE, "Job", f"label_values({series(m.JOB_INFO, THIS_NAMESPACE)}, {NAME_LABEL})")
        )
    )
    number_of_panel = y = 0
    for title, panels in rows().items():
        number_of_panel += 1
        made = made.with_row(
            dashboard.Row(title).id(number_of_panel).grid_pos(models.GridPos(x=0, y=y, w=GRID_COLUMNS, h=1))
        )
        y += 1
        x = line_height = 0
        for panel in panels:
            number_of_panel += 1
            size = panel.build().grid_pos
            assert size is not None
            if x + size.w > GRID_COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            made = made.with_panel(panel.id(number_of_panel).grid_pos(models.GridPos(x=x, y=y, w=size.w, h=size.h)))
            x, line_height = x + size.w, max(line_height, size.h)
        y += line_height
    return json.dumps(json.loads(JSONEncoder().encode(made.build())), indent=2, sort_keys=True) + "\n"
