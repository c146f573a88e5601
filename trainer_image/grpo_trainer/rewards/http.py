"""A reward server: rows out, scores in, over HTTP (docs/rewards.md: A server)."""

import json
import random
import time
from collections.abc import Callable
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from grpo_api.rewards.function import as_scores
from grpo_api.rewards.rows import RewardRow

_RETRIED = frozenset({408, 425, 429, *range(500, 600)})
_ABOUT_THE_ROWS = frozenset({400, 413, 422, 500})
"""Answers that another choice of rows may not get."""
_LONGEST_ANSWER = 16 << 20
_MARGIN = 0.5
"""Seconds before the pool's limit in which no attempt begins."""


class HttpRewardError(Exception):
    """A request that brought no scores."""

    def __init__(self, text: str, *, indivisible: bool) -> None:
        super().__init__(text)
        self.indivisible = indivisible
        """Fewer rows would fare no better."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirection would take the token to another server, and make a GET of the POST."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpFunction:
    """Posts rows and reads scores; times are in seconds, `budget` is for all attempts of a call together."""

    line = file = None

    def __init__(
        self,
        url: str,
        batch_size: int,
        timeout: float,
        retries: int,
        backoff: float,
        budget: float,
        token_file: str | None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.batch_size = batch_size
        self._url, self._timeout, self._retries, self._backoff = url, timeout, retries, backoff
        self._budget, self._token_file, self._sleep = budget, token_file, sleep
        self._opener = build_opener(_NoRedirects)

    def __call__(self, rows: list[RewardRow]) -> list[float | None]:
        """Scores of the rows. Raises HttpRewardError, TypeError on an answer of another form or length."""
        body = json.dumps(_columns(rows), default=str).encode()
        headers = self._headers()
        end = time.monotonic() + self._budget - _MARGIN
        attempt = 0
        while True:
            try:
                return _read_scores(self._post(body, headers, min(self._timeout, end - time.monotonic())), len(rows))
            except HTTPError as error:
                text = f"{self._url} answered {error.code} {error.reason}: {_start(error.read(500))}"
                failure = HttpRewardError(text, indivisible=error.code not in _ABOUT_THE_ROWS)
                if error.code not in _RETRIED:
                    raise failure from None
                asked = _retry_after(error.headers)
            except (OSError, HTTPException) as error:  # no connection, a time-out, or one that was cut
                reason = getattr(error, "reason", error)
                failure, asked = HttpRewardError(f"{self._url}: {reason}", indivisible=True), 0.0
            pause = max(self._backoff * 2**attempt * random.uniform(0.5, 1.5), asked)
            attempt += 1
            if attempt > self._retries or time.monotonic() + pause >= end:
                tries = f" ({attempt} attempt{'s' if attempt > 1 else ''})"
                raise HttpRewardError(f"{failure}{tries}", indivisible=failure.indivisible)
            self._sleep(pause)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "grpo-trainer"}
        if self._token_file is not None:  # read anew each time: the kubelet renews it
            try:
                token = Path(self._token_file).read_text().strip()
            except OSError as error:
                text = f"the token of http.tokenSecret cannot be read: {error}"
                raise HttpRewardError(text, indivisible=True) from None
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _post(self, body: bytes, headers: dict[str, str], timeout: float) -> bytes:
        request = Request(self._url, body, headers, method="POST")
        with self._opener.open(request, timeout=max(timeout, 0.001)) as answer:
            text: bytes = answer.read(_LONGEST_ANSWER + 1)
        if len(text) > _LONGEST_ANSWER:
            raise HttpRewardError(f"{self._url} answered more than {_LONGEST_ANSWER >> 20} MiB", indivisible=True)
        return text


def _columns(rows: list[RewardRow]) -> dict[str, list[Any]]:
    """The rows by column: the data's own, and over them those that every row has."""
    keys = dict.fromkeys(key for row in rows for key in row.columns)
    columns = {key: [row.columns.get(key) for row in rows] for key in keys}
    return columns | {
        "prompts": [row.prompt for row in rows],
        "completions": [row.completion for row in rows],
        "ground_truth": [row.ground_truth for row in rows],
        "data_source": [row.data_source for row in rows],
        "extra_info": [row.extra_info for row in rows],
    }


def _read_scores(text: bytes, count: int) -> list[float | None]:
    try:
        answer = json.loads(text)
    except ValueError:
        raise TypeError(f"the server answered what is no JSON: {_start(text)}") from None
    if isinstance(answer, dict):
        if "rewards" not in answer:
            raise TypeError(f"the server answered an object with keys {sorted(answer)}; it must hold `rewards`")
        answer = answer["rewards"]
    return as_scores(answer, count)


def _retry_after(headers: Message) -> float:
    """Seconds; 0 where the header is a date or not there."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else 0.0


def _start(text: bytes) -> str:
    shown = text.decode(errors="replace").strip()
    return shown if len(shown) <= 200 else shown[:200] + "..."
