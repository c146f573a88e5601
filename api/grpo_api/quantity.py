"""Kubernetes resource quantities (`8Gi`, `500m`, `2`): what the API server takes, and the nearest where it does not."""

import re
from decimal import Decimal
from typing import Any

from pydantic_core import PydanticCustomError

BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL = ("n", "u", "m", "k", "M", "G", "T", "P", "E")
QUANTITY_PATTERN = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,3})?$"
SHAPE = "write a number with one of the suffixes Ki Mi Gi Ti Pi Ei (powers of 1024) or m k M G T P E, such as 8Gi"

_SCALE = {
    **{suffix: Decimal(1024) ** (power + 1) for power, suffix in enumerate(BINARY)},
    **{suffix: Decimal(10) ** (3 * (power - 3)) for power, suffix in enumerate(DECIMAL[:3])},
    **{suffix: Decimal(10) ** (3 * (power + 1)) for power, suffix in enumerate(DECIMAL[3:])},
}
_LOOSE = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)([a-z]*)")
_WORDS = {"kilobytes": "k", "megabytes": "M", "gigabytes": "G", "terabytes": "T", "bytes": "", "b": "", "cpu": ""}


def amount(quantity: int | str) -> Decimal:
    """The number that a valid quantity stands for, in its base unit (bytes, cores, pieces)."""
    text = str(quantity)
    for suffix in (text[-2:], text[-1:]):
        if suffix in _SCALE:
            return Decimal(text.removesuffix(suffix)) * _SCALE[suffix]
    return Decimal(text)


def nearest(text: str) -> str | None:
    """The quantity that was probably meant, or None: `8GiB` and `8 gib` are 8Gi, `8GB` is 8G, `64K` is 64k."""
    found = _LOOSE.fullmatch("".join(text.split()).lower().lstrip("+-"))
    if found is None:
        return None
    number, unit = re.sub("[_,]", "", found[1]), found[2]
    if unit in _WORDS:
        return number + _WORDS[unit]
    # `m` is milli to Kubernetes; whoever wrote MB or mb means a million bytes.
    same = {suffix.lower(): suffix for suffix in (*DECIMAL[3:], *BINARY)}
    unit = unit.removesuffix("s").removesuffix("ytes").removesuffix("b")
    return number + same[unit] if unit in same else None


def check_quantity(value: Any) -> Any:
    """Validator of a quantity that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise PydanticCustomError("quantity", f"must be a quantity: {SHAPE}")
    if isinstance(value, float):
        if value.is_integer() and value >= 0:
            return int(value)
        raise PydanticCustomError("quantity", f'is a fraction without quotes: write "{value}"')
    if re.fullmatch(QUANTITY_PATTERN, str(value)):
        return value
    meant = nearest(str(value))
    if meant is not None and str(value).lstrip().startswith("-"):
        raise PydanticCustomError("quantity", f"must not be negative: try {meant}")
    raise PydanticCustomError(
        "quantity", f"is no Kubernetes quantity: {f'write {meant}' if meant is not None else SHAPE}"
    )


def check_size(value: Any) -> Any:
    """Validator of a quantity of bytes, of which there must be one at least."""
    value = check_quantity(value)
    if amount(value) >= 1:
        return value
    meant = f"{str(value)[:-1]}M" if str(value).endswith("m") and amount(value) > 0 else "1Gi"
    why = "m stands for a thousandth of a byte" if str(value).endswith("m") else "must be at least one byte"
    raise PydanticCustomError("quantity", f"{why}: try {meant}")
