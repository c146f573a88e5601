"""verl's configuration to a GRPOJob: a pure function of texts, an environment and a reader of the files they name."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_api.errors import InvalidJobError
from grpo_api.job import GRPOJobSpec, parse_job
from grpo_api.names import API_VERSION, KIND
from grpo_api.verl_import.draft import Draft, merge
from grpo_api.verl_import.hydra import parse_override
from grpo_api.verl_import.keys import KEYS, canonical
from grpo_api.verl_import.model import (
    Carried,
    Default,
    Fault,
    Left,
    Place,
    Reader,
    Report,
    Setting,
    Source,
    VerlImportError,
)
from grpo_api.verl_import.reward import build_reward
from grpo_api.verl_import.sections import (
    batch_sizes,
    checkpoints,
    clip,
    estimator_and_engine,
    job_name,
    lora,
    model_and_data,
    parallel,
    schedule,
)
from grpo_api.verl_import.shell_run import read_script
from grpo_api.verl_import.text import dump_job, key_table
from grpo_api.verl_import.yaml_source import read_yaml

__all__ = [
    "Carried",
    "Default",
    "Fault",
    "Left",
    "Place",
    "Reader",
    "Report",
    "Setting",
    "Source",
    "VerlImportError",
    "dump_job",
    "import_verl",
    "key_table",
]

_OWN_CONFIGS = ("", "ppo_trainer", "ppo_megatron_trainer", "ppo_veomni_trainer", "ppo_torchtitan_trainer")


def import_verl(
    sources: Sequence[Source],
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    read: Reader = lambda path: None,
) -> tuple[dict[str, Any], Report]:
    """The GRPOJob (as `grpoctl plan` and kubectl take it) and what became of every setting.

    Files come before `key=value` overrides, as in Hydra; within each, later ones win. `env` is the environment that
    a script and `${oc.env:...}` see. Raises VerlImportError with every fault that was found.
    """
    env = env or {}
    report = Report()
    settings = [item for kind in ("yaml", "shell", "override") for item in _read(sources, kind, env, read, report)]
    draft = Draft(merge(settings, report), report, env)
    metadata = {"name": job_name(draft, name)}
    model_and_data(draft)
    lora(draft)
    build_reward(draft, read)
    estimator_and_engine(draft)
    clip(draft)
    parallel(draft)
    batch_sizes(draft)
    schedule(draft)
    checkpoints(draft)
    for row in KEYS:
        if not row.combined:
            draft.simple(row.verl)
    draft.rest()
    if draft.faults:
        raise VerlImportError(draft.faults)
    order = [field.alias for field in GRPOJobSpec.model_fields.values()]
    spec = {section: draft.spec[section] for section in order if section in draft.spec}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    _check(job, draft)
    return job, report


def _read(sources: Sequence[Source], kind: str, env: Mapping[str, str], read: Reader, report: Report) -> list[Setting]:
    found: list[Setting] = []
    for source in sources:
        if source.kind != kind:
            continue
        if kind == "yaml":
            found += read_yaml(source.name, source.text)
        elif kind == "override":
            found += parse_override(source.text, Place(source.name))
        else:
            script = read_script(source.name, source.text, env)
            report.notes += script.notes
            found += [*_config(source.name, script.config, read, report), *script.settings]
    return found


def _config(script: str, config: Mapping[str, str], read: Reader, report: Report) -> list[Setting]:
    """The user's own file behind `--config-name`; verl's own ones are the defaults that we know."""
    name = config.get("name", "").removesuffix(".yaml")
    if name in _OWN_CONFIGS:
        return []
    path = f"{config.get('path', '').rstrip('/')}/{name}.yaml".lstrip("/" if not config.get("path") else "")
    text = read(path)
    if text is None:
        report.notes.append(
            f"{script}: the configuration {path} cannot be read here; give its file as an argument, too"
        )
        return []
    return read_yaml(path, text)


def _check(job: dict[str, Any], draft: Draft) -> None:
    """What `grpoctl plan` would say, in verl's terms."""
    faults: list[Fault] = []
    try:
        parse_job(job)
    except InvalidJobError as error:
        for item in error.faults:
            if item.path == "metadata.name":
                faults.append(Fault(None, f"--name {item.value}", item.message))
                continue
            origin = draft.origins.get(item.path)
            key = origin.partition("=")[0] if origin else ""
            setting = draft.settings.get(canonical(key)) if key else None
            repair = f"; add {key}=... after the file" if key else ""
            place = setting.place if setting else None
            faults.append(Fault(place, origin or item.path, f"{item.path} {item.message}{repair}"))
    if faults:
        raise VerlImportError(faults)
