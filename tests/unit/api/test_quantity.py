"""Kubernetes quantities: what passes, and what is advised in place of what does not."""

from decimal import Decimal

import pytest
from pydantic_core import PydanticCustomError

from grpo_api.quantity import amount, check_quantity, check_size, nearest


@pytest.mark.parametrize("good", [0, 8, 8.0, "8", "8Gi", "500m", "1.5Gi", ".5", "5.", "1e3", "1E3", "2k", "3Ei", "+1"])
def test_good(good):
    assert check_quantity(good) == good


@pytest.mark.parametrize(
    "bad", ["", " ", "8GiB", "8 Gi", "8K", "Gi", "-1", "-1Gi", "1e", "1.2.3", "half", True, 0.5, float("nan"), [8]]
)
def test_bad(bad):
    with pytest.raises(PydanticCustomError):
        check_quantity(bad)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("8GiB", "8Gi"),
        ("8 gib", "8Gi"),
        ("8GB", "8G"),
        ("8g", "8G"),
        ("64K", "64k"),
        ("1_000MB", "1000M"),
        ("1,024 MiB", "1024Mi"),
        ("2 gigabytes", "2G"),
        ("100 bytes", "100"),
        ("half", None),
        ("8 apples", None),
        ("", None),
    ],
)
def test_nearest(given, meant):
    assert nearest(given) == meant
    if meant is not None:
        assert check_quantity(meant) == meant


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("8Gi", 8 * 2**30), ("500m", Decimal("0.5")), ("2k", 2000), (3, 3), ("1e3", 1000), ("1E", 10**18), ("1Ei", 2**60)],
)
def test_amount(quantity, number):
    assert amount(quantity) == number


@pytest.mark.parametrize(("given", "words"), [("8m", "try 8M"), ("0", "try 1Gi"), (0, "try 1Gi"), ("0.5", "one byte")])
def test_less_than_a_byte(given, words):
    with pytest.raises(PydanticCustomError, match=words):
        check_size(given)
