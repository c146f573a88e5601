"""Heads that hang, lie or never stop, over real connections: none of them holds up the others or takes memory."""

import asyncio
import itertools
import json
import time

import pytest

from grpo_api.status import HeadReport
from grpo_operator import progress
from grpo_operator.progress import ProgressReader

GOOD = {"phase": "training", "progress": {"step": 7, "totalSteps": 20}}
KEY = ("team", "sums")


def answer(body: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n"):
    async def serve(writer):
        writer.write(head + body)

    return serve


async def hang(writer):
    await asyncio.sleep(3600)


async def endless(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def slowly(writer):
    """A byte now and then: no single wait is long."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def in_pieces(writer):
    """TCP may cut an answer anywhere."""
    body = json.dumps(GOOD).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), 10):
        writer.write(body[start : start + 10])
        await writer.drain()
        await asyncio.sleep(0.01)


BAD = {
    "hangs": hang,
    "endless": endless,
    "slow": slowly,
    "not HTTP": answer(b"", b"SSH-2.0-OpenSSH\r\n"),
    "not JSON": answer(b"\x00\xff{{{"),
    "no object": answer(b"[1, 2]"),
    "other types": answer(b'{"phase": 7, "progress": {"step": "many"}}'),
    "deep": answer(b"[" * 60_000),
    "error": answer(json.dumps(GOOD).encode(), b"HTTP/1.1 500 Internal Server Error\r\n\r\n"),
    "too long": answer(json.dumps({**GOOD, "phase": "training" + " " * progress.MAX_BYTES}).encode()),
    "redirect": answer(b"", b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"),
    "closes": answer(b"", b""),
}


class Heads:
    """Servers on loopback ports, closed at the end."""

    def __init__(self):
        self._servers, self.received = [], 0

    async def start(self, serve):
        async def on_connection(reader, writer):
            try:
                await reader.readuntil(b"\r\n\r\n")
                await serve(writer)
                await writer.drain()
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def close(self):
        for server in self._servers:
            server.close()


@pytest.fixture
async def heads(monkeypatch):
    monkeypatch.setattr(progress, "TIMEOUT_SECONDS", 0.3)
    found = Heads()
    yield found
    found.close()


async def report_of(reader, key, seconds=3.0):
    """The report once it is there; None where there is none after `seconds`."""
    running = asyncio.create_task(reader.run())
    try:
        async with asyncio.timeout(seconds):
            while reader.report(key) is None:
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    return reader.report(key)


@pytest.mark.parametrize("bad", BAD)
async def test_head_that_misbehaves_holds_up_no_other(heads, bad):
    reader = ProgressReader(0.01, lambda key: None)
    reader.follow(("team", "bad"), await heads.start(BAD[bad]))
    reader.follow(KEY, await heads.start(answer(json.dumps(GOOD).encode())))
    assert await report_of(reader, KEY) == HeadReport.model_validate(GOOD)
    assert reader.report(("team", "bad")) is None


async def test_answer_in_pieces_is_read_whole(heads):
    reader = ProgressReader(0.01, lambda key: None)
    reader.follow(KEY, await heads.start(in_pieces))
    assert await report_of(reader, KEY) == HeadReport.model_validate(GOOD)


@pytest.mark.parametrize("bad", ["hangs", "endless", "not JSON", "closes"])
async def test_head_keeps_its_last_report_when_it_turns_bad(heads, bad):
    replies = [answer(json.dumps(GOOD).encode()), BAD[bad]]

    async def turn(writer):
        await (replies.pop(0) if len(replies) > 1 else replies[0])(writer)

    changed = []
    reader = ProgressReader(0.01, changed.append)
    reader.follow(KEY, await heads.start(turn))
    assert await report_of(reader, KEY) == HeadReport.model_validate(GOOD)
    assert await report_of(reader, ("team", "another"), 0.7) is None  # polls on for a while
    assert reader.report(KEY) == HeadReport.model_validate(GOOD)
    assert changed == [KEY]


async def test_reader_gives_no_report_of_another_address(heads):
    reader = ProgressReader(0.01, lambda key: None)
    address = await heads.start(answer(json.dumps(GOOD).encode()))
    reader.follow(KEY, address)
    assert await report_of(reader, KEY) is not None
    reader.follow(KEY, address)
    assert reader.report(KEY) is not None
    reader.follow(KEY, await heads.start(hang))
    assert reader.report(KEY) is None
    reader.follow(KEY, None)
    assert reader.report(KEY) is None


@pytest.mark.parametrize("phase", ["training", "loading"])
async def test_trainer_without_news_is_asked_ever_less_often(heads, phase):
    """After half of the time that has passed since the first answer; one that does not train yet, at the interval."""
    asked = []

    async def note(writer):
        asked.append(time.monotonic())
        await answer(json.dumps(GOOD | {"phase": phase}).encode())(writer)

    reader = ProgressReader(0.01, lambda key: None)
    reader.follow(KEY, await heads.start(note))
    assert await report_of(reader, ("team", "another"), 1.0) is None
    # A busy machine only makes pauses longer.
    pauses = [(later - earlier, earlier - asked[0]) for earlier, later in itertools.pairwise(asked)]
    if phase == "training":
        assert len(asked) >= 3
        assert all(pause > 0.4 * age for pause, age in pauses)
    else:
        assert min(pause for pause, age in pauses if age > 0.5) < 0.15


async def test_news_make_a_head_asked_often_again(heads):
    asked = []

    async def count(writer):
        asked.append(time.monotonic())
        await answer(json.dumps({"phase": "training", "progress": {"step": len(asked)}}).encode())(writer)

    changed = []
    reader = ProgressReader(0.01, changed.append)
    reader.follow(KEY, await heads.start(count))
    assert await report_of(reader, ("team", "another"), 1.0) is None
    assert min(later - earlier for earlier, later in itertools.pairwise(asked) if earlier > asked[0] + 0.5) < 0.15
    assert len(asked) - len(changed) in (0, 1), "the last answer may be on its way"
