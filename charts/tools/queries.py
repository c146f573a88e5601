"""PromQL of the dashboard and the alerts, built from the metrics' contract."""

from collections.abc import Iterable

from grpo_api.metric_names import JOB_LABELS, Metric

NAMESPACE_LABEL, NAME_LABEL = JOB_LABELS
NAMESPACE_VARIABLE, JOB_VARIABLE = "namespace", "job"

THIS_NAMESPACE = f'{NAMESPACE_LABEL}=~"${NAMESPACE_VARIABLE}"'
THIS_JOB = f'{THIS_NAMESPACE},{NAME_LABEL}=~"${JOB_VARIABLE}"'


def series(metric: Metric, *selectors: str) -> str:
    """An instant selector."""
    return f"{metric.name}{{{','.join(selectors)}}}" if selectors else metric.name


def by_job(metric: Metric, *selectors: str, more: Iterable[str] = ()) -> str:
    """One series a job and label of `more`: a gang's restart changes the scraped instance, not the job's curve."""
    return f"max by ({', '.join([*JOB_LABELS, *more])}) ({series(metric, *selectors)})"


def age(metric: Metric, *selectors: str) -> str:
    """Seconds since a timestamp metric."""
    return f"time() - {by_job(metric, *selectors)}"
