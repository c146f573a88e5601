"""The job under construction: looks keys up, writes fields, and books what became of every setting."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grpo_api.spec.root import GRPOJobSpec
from grpo_api.verl_import.hydra import scalar
from grpo_api.verl_import.interpolate import Unresolved, resolve
from grpo_api.verl_import.keys import ACTOR, CARRIED, ROLLOUT, Kind, canonical, verl_default
from grpo_api.verl_import.model import Carried, Default, Fault, Left, Place, Report, Setting, show
from grpo_api.verl_import.not_carried import known_names, reason_for

KL_COEF = ACTOR + "kl_loss_coef"
ENGINE_KWARGS = ROLLOUT + "engine_kwargs.vllm."
TEMPLATE_KWARGS = "data.apply_chat_template_kwargs."
_WORDS = {"yes": True, "on": True, "no": False, "off": False}  # YAML 1.1's, which verl's reader takes as bool
MISSING = "???"
"""OmegaConf's mark of a value that is still to be given."""
_NO_DEFAULT = object()


def merge(settings: Iterable[Setting], report: Report) -> dict[str, Setting]:
    """The last setting of every key, by verl's present names. What a later one replaces is noted."""
    found: dict[str, Setting] = {}
    for setting in settings:
        key = canonical(setting.key)
        if setting.deleted:
            gone = [name for name in found if name == key or name.startswith(key + ".")]
            for name in gone:
                report.notes.append(
                    f"{found[name].place}: {found[name].shown} is taken away by {setting.shown} ({setting.place})"
                )
                del found[name]
            found[key] = setting
            continue
        before = found.get(key)
        if before is not None:
            if setting.value is None and setting.key != key and not before.deleted:
                continue  # verl's file holds its old names with null
            if before.value is not None and before.value != setting.value:
                report.notes.append(f"{before.place}: {before.shown} is replaced by {setting.shown} ({setting.place})")
        found[key] = setting
    return found


class Draft:
    def __init__(self, settings: Mapping[str, Setting], report: Report, env: Mapping[str, str]) -> None:
        self.raw = settings
        self.settings: dict[str, Setting] = {}
        self.report = report
        self.env = env
        self.spec: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        """Field path to the verl key that decided it, with its value."""
        self.faults: list[Fault] = []
        self.booked: set[str] = set()
        self.unresolved: set[str] = set()
        for key, setting in settings.items():
            self._resolve(key, setting)

    def _resolve(self, key: str, setting: Setting) -> None:
        try:
            value = resolve(key, setting.value, self._lookup, self.env)
            self.settings[key] = replace(setting, value=None if value == MISSING else value)
        except (Unresolved, ValueError) as error:
            if key in CARRIED or key.startswith((ENGINE_KWARGS, TEMPLATE_KWARGS)):
                self.fault(setting, str(error))
                self.unresolved.add(key)
            self.settings[key] = setting

    def _lookup(self, key: str) -> Any:
        found = self.raw.get(key) or self.raw.get(canonical(key))
        if found is not None and not found.deleted:
            return found.value
        return verl_default(canonical(key))

    def fault(self, setting: Setting, message: str) -> None:
        fault = Fault(setting.place, setting.shown, message)
        if fault not in self.faults:
            self.faults.append(fault)

    # Reading

    def given(self, key: str) -> Setting | None:
        """The setting of a key, where it has a value."""
        found = self.settings.get(key)
        return None if found is None or found.deleted or found.value is None else found

    def value(self, key: str) -> Any:
        """The key's value, converted; verl's default where it is not given. None where it has none or is faulty."""
        setting = self.given(key)
        if setting is None:
            default = verl_default(key)
            return resolve(key, default, self._lookup, self.env) if isinstance(default, str) else default
        if key in self.unresolved:
            return None
        if setting.doubts:
            why = self.why(setting)
            variables = [doubt.text.split()[0][1:] for doubt in setting.doubts if doubt.unset]
            repair = f"set it in the environment ({variables[0]}=... grpoctl import verl ...), or " if variables else ""
            self.fault(setting, f"{why}; {repair}add {setting.key}=... after the script")
            return None
        try:
            return convert(setting.value, CARRIED[key].kind)
        except ValueError as error:
            self.fault(setting, str(error))
            return None

    @staticmethod
    def why(setting: Setting) -> str:
        """Why the value is not what bash would make of it."""
        return "; ".join(doubt.text for doubt in setting.doubts)

    def number(self, key: str, otherwise: int = 1) -> int:
        """A whole number that arithmetic can go on with, also where it is faulty."""
        found = self.value(key)
        return found if isinstance(found, int) and found > 0 else otherwise

    # Writing

    def set(self, path: str, value: Any) -> None:
        *above, last = path.split(".")
        section = self.spec
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value

    def get(self, path: str) -> Any:
        """A field that was set, or None."""
        found: Any = self.spec
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def put(self, path: str, value: Any, key: str, note: str = "") -> None:
        """Write a field that `key` decides; book it as carried, or as verl's default where that differs from ours."""
        if value is None:
            return
        setting = self.given(key)
        self.origins[f"spec.{path}"] = f"{key}={show(value)} (verl's default)" if setting is None else setting.shown
        if setting is not None:
            self.set(path, value)
            self.carry(key, path, note)
        elif value != our_default(path):
            self.set(path, value)
            self.report.defaults.append(
                Default(key, verl_default(key), f"spec.{path}", note or changed(verl_default(key), value))
            )

    def carry(self, key: str, path: str, note: str = "") -> None:
        if key not in self.booked:
            setting = self.settings[key]
            self.booked.add(key)
            full = path if path.startswith("metadata") else f"spec.{path}"
            self.report.carried.append(Carried(setting, full, note or self.renamed(key)))

    def renamed(self, key: str) -> str:
        written = self.settings[key].key
        return f"the name is now {key}" if written != key and "." in written and not key.endswith("." + written) else ""

    def leave(self, key: str, reason: str) -> None:
        if key in self.settings and key not in self.booked:
            self.booked.add(key)
            self.report.not_applicable.append(Left(self.settings[key], reason))

    def change(self, key: str, reason: str) -> None:
        if key in self.settings and key not in self.booked:
            self.booked.add(key)
            self.report.changed.append(Left(self.settings[key], reason))
        elif key not in self.settings:
            default = Setting(key, verl_default(key), Place("verl's default"))
            self.report.changed.append(Left(default, reason))

    # Whole keys

    def simple(self, key: str) -> None:
        """A key that becomes one field by itself."""
        row, setting = CARRIED[key], self.settings.get(key)
        if key in self.booked:
            return
        if setting is not None and self.given(key) is None:
            self.leave(key, "not set; ours stands" if not setting.deleted else "taken away; ours stands")
            return
        if setting is None and not row.write_default:
            return
        value = self.value(key)
        if row.choices is not None and value is not None:
            word = row.choices.get(str(value).lower()) or row.choices.get(str(value))
            if word is None and row.instead is not None:
                self.set(row.path, row.instead)
                self.change(key, f"{row.path} has no {show(value)} yet: {row.instead} is used")
                return
            if word is None:
                assert setting is not None
                self.fault(setting, f"must be one of {', '.join(row.choices)}")
                return
            value = word
        self.put(row.path, value, key)

    def rest(self) -> None:
        """Book every setting that no code has booked: not applicable, changed or unknown."""
        for key, setting in self.settings.items():
            if key in self.booked:
                continue
            row = reason_for(key)
            if key in CARRIED:
                self.leave(key, "not set; ours stands" if setting.value is None else "without effect on the job")
            elif row is None:
                self.booked.add(key)
                self.report.unknown.append(Left(setting, self._advice(key)))
            elif not setting.deleted and row.changes(setting.value):
                self.change(key, row.instead)
            else:
                self.leave(key, row.reason)

    def _advice(self, key: str) -> str:
        names = [*CARRIED, *known_names()]
        close = get_close_matches(key, names, 1, cutoff=0.75)
        if not close:
            last = key.rpartition(".")[2]
            close = [name for name in names if name.rpartition(".")[2] == last][:1]
        return f"not carried; did you mean {close[0]}?" if close else "not carried; verl 0.9 has no such key"


def changed(before: Any, after: Any) -> str:
    return "" if before == after or isinstance(before, str) else f"as {show(after)}"


def our_default(path: str) -> Any:
    """Our default of a field below `spec`, or a value equal to nothing where it has none."""
    model: type[BaseModel] = GRPOJobSpec
    for name in path.split("."):
        field = _field(model, name)
        if field is None:
            return _NO_DEFAULT
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
        else:
            return _NO_DEFAULT if field.is_required() else field.get_default(call_default_factory=True)
    return _NO_DEFAULT


def _field(model: type[BaseModel], alias: str) -> FieldInfo | None:
    return next((field for field in model.model_fields.values() if field.alias == alias), None)


def convert(value: Any, kind: Kind) -> Any:
    """A value as the key's kind. Raises ValueError that says what it must be."""
    if isinstance(value, str) and kind in ("int", "float", "bool"):
        value = _WORDS.get(value.lower(), scalar(value.strip())) if kind == "bool" else scalar(value.strip())
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise ValueError("must be true or false")
    if kind == "int":
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise ValueError("must be a whole number, such as 8")
    if kind == "float":
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        raise ValueError("must be a number, such as 1e-6")
    if kind == "floats":
        if not isinstance(value, list):
            raise ValueError("must be a list of numbers, such as [0.9,0.999]")
        return [convert(item, "float") for item in value]
    if kind == "text or list" and isinstance(value, list):
        return [convert(item, "text") for item in value]
    if kind in ("text", "text or list"):
        if (
            isinstance(value, str | int | float)
            and not isinstance(value, bool)
            and not re.fullmatch(r"\s*", str(value))
        ):
            return str(value)
        raise ValueError("must be a text that is not empty")
    return value
