"""Following a job: log lines, the table of steps, both displays, and how it ends. The source is driven in-process."""

import csv
import io
import re
import threading

import pytest
from rich.console import Console

from grpoctl.display import PlainView, duration, picture, sparkline
from grpoctl.errors import CliError
from grpoctl.follow import Followed, Outcome, follow
from grpoctl.records import check_picture, running_mean, write_csv, write_curve
from grpoctl.source import JobGone, JobSeen, LogLine, Trouble, attempt_of
from grpoctl.steps import StepRow, StepTable, parse_line

LINE = "step=3/20 reward/mean=0.312 reward/std=0.4 tokens_per_s=95.1 step_s=18.2 eta_s=310 rollout_s=4.5 lr=3e-05"


def line(step: int, reward: float, attempt: int = 0, eta: float = 60) -> LogLine:
    return LogLine(attempt, f"step={step}/20 reward/mean={reward} tokens_per_s=95.1 step_s=18.2 eta_s={eta}")


def seen(state: str, **status) -> JobSeen:
    return JobSeen({"metadata": {"name": "sums", "uid": "1"}, "status": {"state": state, "attempt": 0, **status}})


class FakeSource:
    """Reports a list of updates from a thread, and a few more once the job has ended."""

    def __init__(self, *updates, rest=()):
        self.updates, self.rest, self.finished = updates, rest, False

    def start(self, put):
        self._put = put
        threading.Thread(target=lambda: [put(update) for update in self.updates], daemon=True).start()

    def finish(self, seconds):
        self.finished = True
        for update in self.rest:
            self._put(update)


class Lines(PlainView):
    """A plain view into a text."""

    def __init__(self):
        self.out = io.StringIO()
        super().__init__(Console(file=self.out, width=200, highlight=False), 0.0)

    def texts(self) -> list[str]:
        return [re.sub(r"^ *\d+:\d\d ", "", text) for text in self.out.getvalue().splitlines()]


def plain(source, **more):
    view = Lines()
    outcome, followed = follow(source, view, "sums", clock=lambda: 0.0, **more)
    return outcome, followed, view.texts()


def text_of(followed: Followed, now: float = 0.0, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(picture(followed, now, width))
    return out.getvalue()


# Log lines


def test_log_line_of_a_step():
    row = parse_line(LINE, attempt=2)
    assert (row.step, row.total_steps, row.attempt, row.reward) == (3, 20, 2, 0.312)
    assert row.values["tokens_per_s"] == 95.1
    assert row.values["lr"] == 3e-5


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("2026-01-31 12:00:00 INFO " + LINE, 3),
        ("step=3/20 reward/mean=nan note=x step_s=1", 3),
        ("restored from step=10", None),
        ("loading step=1/2", None),
        ("laststep=3/20 a=1", None),
        ("", None),
    ],
)
def test_other_log_lines(text, step):
    row = parse_line(text)
    assert (row.step if row else None) == step
    assert row is None or "note" not in row.values


# The table of steps


def test_each_step_counts_once():
    table = StepTable()
    assert table.add(StepRow(1, 3, 0, {"reward/mean": 0.1}))
    assert not table.add(StepRow(1, 3, 0, {"reward/mean": 0.1}))
    assert len(table) == 1


def test_restart_replaces_the_steps_after_its_checkpoint():
    table = StepTable()
    for step in range(1, 14):
        table.add(StepRow(step, 20, 0, {"reward/mean": 0.1}))
    assert table.add(StepRow(11, 20, 1, {"reward/mean": 0.9}))
    assert [(row.step, row.attempt) for row in table][-2:] == [(10, 0), (11, 1)]
    assert not table.add(StepRow(11, 20, 0, {"reward/mean": 0.1}))


# Following


def test_success_in_plain_lines():
    outcome, followed, lines = plain(
        FakeSource(
            seen("Starting", reason="Starting", message="0 of 2 pods are ready; head: starting"),
            seen("Running"),
            line(1, 0.125, eta=340),
            seen("Running", progress={"step": 1, "totalSteps": 20}),
            line(1, 0.125),
            line(2, 0.25, eta=320),
            seen("Running", checkpoint={"step": 2}),
            seen("Succeeded", message="rank 0 ended well after step 20"),
            rest=[line(20, 0.75, eta=0)],
        )
    )
    assert outcome is Outcome.SUCCEEDED
    assert lines == [
        "Starting (Starting: 0 of 2 pods are ready; head: starting)",
        "Running",
        "step 1/20  reward 0.125  95.1 tokens/s, 18.2 s a step  5:40 left",
        "step 2/20  reward 0.250  95.1 tokens/s, 18.2 s a step  5:20 left",
        "checkpoint of step 2",
        "step 20/20  reward 0.750  95.1 tokens/s, 18.2 s a step",
    ]
    assert followed.steps.rewards() == [0.125, 0.25, 0.75]


def test_failure_has_exit_code_1_and_keeps_reason_and_message():
    outcome, followed, _ = plain(
        FakeSource(seen("Failed", reason="RewardError", message="mine.py, line 3: KeyError: 'x'"))
    )
    assert int(outcome) == 1
    assert followed.cause == "RewardError: mine.py, line 3: KeyError: 'x'"


def test_restart_is_told_and_repeated_steps_are_shown_again():
    told = seen("Restarting", reason="PodDeleted", message="sums-1 is gone; the gang restarts from step 1", attempt=1)
    outcome, followed, lines = plain(
        FakeSource(line(1, 0.1), line(2, 0.2), told, line(2, 0.3, attempt=1), seen("Succeeded", attempt=1))
    )
    assert "Restarting (PodDeleted: sums-1 is gone; the gang restarts from step 1)" in lines
    assert [text[:9] for text in lines if text.startswith("step")] == ["step 1/20", "step 2/20", "step 2/20"]
    assert followed.steps.rewards() == [0.1, 0.3]
    assert outcome is Outcome.SUCCEEDED


def test_without_the_log_steps_come_from_the_status():
    progress = {"step": 4, "totalSteps": 20, "rewardMean": 0.5, "tokensPerSecond": 90.0, "etaSeconds": 80.0}
    _, followed, lines = plain(
        FakeSource(
            seen("Running", progress=progress),
            Trouble("log", "cannot read the log of pod sums-0: forbidden"),
            Trouble("log", "cannot read the log of pod sums-0: forbidden"),
            seen("Running", progress={**progress, "step": 5, "rewardMean": 0.6}),
            seen("Succeeded"),
        )
    )
    assert followed.steps.rewards() == [0.5, 0.6]
    assert lines.count("cannot read the log of pod sums-0: forbidden") == 1
    assert "step 4/20  reward 0.500  90.0 tokens/s  1:20 left" in lines


def test_deleted_job_ends_it():
    source = FakeSource(seen("Running"), JobGone())
    outcome, _, _ = plain(source)
    assert outcome is Outcome.GONE
    assert int(outcome) != 0


def test_timeout_ends_it():
    times = iter(range(1000))
    outcome, followed = follow(FakeSource(seen("Running")), Lines(), "sums", timeout=2, clock=lambda: next(times))
    assert (outcome, followed.state) == (Outcome.TIMED_OUT, "Running")


# The live picture


def running(steps: int = 12) -> Followed:
    followed = Followed("sums")
    followed.take(seen("Running", checkpoint={"step": 10}), 0.0)
    for step in range(1, steps + 1):
        followed.take(line(step, step / 20, eta=185), 0.0)
    return followed


def test_picture_of_a_running_job():
    text = text_of(running())
    for words in (
        "sums  Running",
        "12/20",
        "60%",
        "3:05 left",
        "0.600",
        "0.050 to 0.600",
        "95.1 tokens/s, 18.2 s a step",
    ):
        assert words in text, words
    assert "▁" in text
    assert "█" in text
    assert re.search(r"checkpoint +step 10", text)


def test_time_left_runs_down_between_steps():
    assert "2:05 left" in text_of(running(), now=60.0)


def test_picture_says_why_a_job_does_not_run():
    followed = running()
    restarts = [{"cause": "OOMKilled", "fromStep": 10}]
    message = {"reason": "OOMKilled", "message": "sums-1 ended with exit code 137"}
    followed.take(seen("Restarting", attempt=1, restarts=restarts), 1.0)
    followed.status |= message
    text = text_of(followed, 1.0)
    assert "attempt 1; last restart: OOMKilled, from step 10" in text
    assert "OOMKilled: sums-1 ended with exit code 137" in text
    assert "left" not in text


def test_silent_node_of_a_running_job_is_told():
    silent = {"reason": "NodeUnreachable", "message": "node b of sums-1 does not answer"}
    followed, view = Followed("sums"), Lines()
    for update in (seen("Running", reason="Training", message=""), seen("Running", **silent)):
        followed.take(update, 0.0)
        view.show(followed, None, 0.0)
    assert view.texts() == ["Running", "Running (NodeUnreachable: node b of sums-1 does not answer)"]
    assert "node b of sums-1 does not answer" in text_of(followed)


def test_picture_before_anything_is_known_and_on_a_narrow_terminal():
    assert "Pending" in text_of(Followed("sums"))
    assert "0/?" in text_of(Followed("sums"))
    assert "0.600" in text_of(running(), width=40)


def test_sparkline_spans_least_to_greatest_and_fits():
    assert sparkline([0, 2, 7]) == "▁▃█"
    assert sparkline([0.5, 0.5]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(1000)], 40)) == 40


def test_durations():
    assert [duration(s) for s in (7, 750, 10931)] == ["0:07", "12:30", "3:02:11"]


# Records


def test_csv_holds_every_step_and_key(tmp_path):
    table = StepTable()
    table.add(parse_line("step=1/2 reward/mean=0.5 step_s=2"))
    table.add(parse_line("step=2/2 reward/mean=0.75 step_s=2 kl=0.01", attempt=1))
    write_csv(tmp_path / "new" / "t.csv", table)
    rows = list(csv.DictReader((tmp_path / "new" / "t.csv").open()))
    assert rows == [
        {"step": "1", "attempt": "0", "reward/mean": "0.5", "step_s": "2.0", "kl": ""},
        {"step": "2", "attempt": "1", "reward/mean": "0.75", "step_s": "2.0", "kl": "0.01"},
    ]


def test_running_mean():
    assert running_mean([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]


def test_curve_is_a_picture_with_labels(tmp_path):
    path = tmp_path / "new" / "curve.svg"
    followed = running()
    followed.take(line(13, 0.7, attempt=1), 0.0)
    write_curve(path, followed.steps, "GRPOJob sums")
    text = path.read_text()
    for label in ("GRPOJob sums", "mean reward of the step", "mean of the last 5 steps", "restarted gang goes on"):
        assert f"<!-- {label} -->" in text, label
    png = tmp_path / "curve.png"
    write_curve(png, followed.steps, "GRPOJob sums")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_picture_name_is_checked_before_training(tmp_path):
    with pytest.raises(CliError, match=r"must end in one of \.pdf, \.png, \.svg"):
        check_picture(tmp_path / "curve.gif")


def test_label_that_somebody_edited_ends_no_log_reader():
    pod = {"metadata": {"labels": {"grpo.dev/attempt": "abc"}}}
    assert attempt_of(pod) == -1
    assert attempt_of({"metadata": {"labels": {"grpo.dev/attempt": "2"}}}) == 2
