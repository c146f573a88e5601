"""How a followed job looks: a live picture on a terminal, a line a change everywhere else."""

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grpo_api.names import State
from grpoctl.follow import Followed
from grpoctl.records import RUNNING_MEAN_STEPS
from grpoctl.steps import STEP_SECONDS, TOKENS_PER_SECOND, StepRow, StepTable

_BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {
    State.RUNNING: "green",
    State.SUCCEEDED: "bold green",
    State.FAILED: "bold red",
    State.INVALID: "bold red",
    State.RESTARTING: "yellow",
}
SPARKLINE_WIDTH = 40


def duration(seconds: float) -> str:
    """`0:07`, `12:30`, `3:02:11`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def state_text(state: str) -> Text:
    return Text(state, style=_STYLES.get(State(state), "cyan") if state in list(State) else "cyan")


def reward_text(steps: StepTable) -> str:
    """The last step's reward, and the mean of the last few: a single step is noisy. Empty where none is known."""
    recent = steps.recent_rewards(RUNNING_MEAN_STEPS)
    if len(recent) < 2:
        return "".join(f"{reward:.3f}" for reward in recent)
    return f"{recent[-1]:.3f} in the last step, {sum(recent) / len(recent):.3f} mean of the last {len(recent)}"


def sparkline(values: list[float], width: int = SPARKLINE_WIDTH) -> str:
    """Values as blocks from their least to their greatest; more than `width` are averaged in groups."""
    if not values:
        return ""
    count = min(width, len(values))
    cuts = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    means = [sum(cut) / len(cut) for cut in cuts]
    low, span = min(means), max(means) - min(means)
    return "".join(_BLOCKS[round((mean - low) / span * (len(_BLOCKS) - 1)) if span else 0] for mean in means)


def picture(followed: Followed, now: float, width: int = 80) -> Group:
    """The whole display as a renderable."""
    head = Text.assemble((followed.name, "bold"), "  ", state_text(followed.state), "  ", _restarts(followed))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    done, total = followed.progress
    bar = Table.grid(padding=(0, 2))
    left = followed.eta_seconds(now) if followed.state == State.RUNNING else None
    bar.add_row(
        ProgressBar(total=total or 1, completed=done, width=max(10, min(50, width - 45)), complete_style="cyan"),
        f"{done}/{total or '?'}",
        f"{100 * done // total}%" if total else "",
        f"{duration(left)} left" if left is not None else "",
    )
    grid.add_row("step", bar)
    if rewards := followed.steps.rewards():
        blocks = sparkline(rewards, min(SPARKLINE_WIDTH, max(8, width - 45)))
        line = f"{blocks}  {min(rewards):.3f} to {max(rewards):.3f}"
        grid.add_row("reward", Text.assemble((f"{rewards[-1]:.3f}", "bold"), "  ", (line, "cyan")))
    if speed := _speed(followed.steps.last):
        grid.add_row("speed", speed)
    if (saved := (followed.status.get("checkpoint") or {}).get("step")) is not None:
        grid.add_row("checkpoint", f"step {saved}")
    parts: list[Text | Table] = [head, grid]
    if not _is_well(followed) and not followed.has_ended and followed.cause:
        parts.append(Text(followed.cause, style="yellow"))
    parts += [Text(message, style="yellow") for message in followed.troubles.values()]
    return Group(*parts)


def _restarts(followed: Followed) -> Text:
    restarts = followed.status.get("restarts") or []
    if not restarts:
        return Text("")
    text = f"attempt {followed.attempt}; last restart: {restarts[-1].get('cause', '?')}"
    if (step := restarts[-1].get("fromStep")) is not None:
        text += f", from step {step}"
    return Text(text, style="dim")


def _speed(row: StepRow | None) -> str:
    if row is None:
        return ""
    parts = []
    if (tokens := row.values.get(TOKENS_PER_SECOND)) is not None:
        parts.append(f"{tokens:,.0f} tokens/s" if tokens >= 100 else f"{tokens:.1f} tokens/s")
    if (seconds := row.values.get(STEP_SECONDS)) is not None:
        parts.append(f"{seconds:.1f} s a step")
    return ", ".join(parts)


class LiveView:
    """Redraws a picture in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, followed: Followed, row: StepRow | None, now: float) -> None:
        self._live.update(picture(followed, now, self._console.width), refresh=True)

    def close(self, followed: Followed, now: float) -> None:
        self.show(followed, None, now)
        self._live.stop()


class PlainView:
    """Prints a line for each change of state and each step; for CI logs and pipes."""

    def __init__(self, console: Console, start: float) -> None:
        self._console, self._start = console, start
        self._state, self._checkpoint, self._troubles = "", -1, dict[str, str]()

    def show(self, followed: Followed, row: StepRow | None, now: float) -> None:
        if row is not None:
            self._print(_step_line(row, followed, now), now)
        # How the job ended is the command's last line.
        shown = followed.state if _is_well(followed) else _state_line(followed)
        if followed.status and not followed.has_ended and shown != self._state:
            self._state = shown
            self._print(shown, now)
        saved = (followed.status.get("checkpoint") or {}).get("step")
        if saved is not None and saved > self._checkpoint:
            self._checkpoint = saved
            self._print(f"checkpoint of step {saved}", now)
        for what, message in followed.troubles.items():
            if self._troubles.get(what) != message:
                self._print(message, now)
        self._troubles = dict(followed.troubles)

    def close(self, followed: Followed, now: float) -> None:
        self.show(followed, None, now)

    def _print(self, text: str, now: float) -> None:
        self._console.print(f"{duration(now - self._start):>7} {text}", markup=False, highlight=False, soft_wrap=True)


def _is_well(followed: Followed) -> bool:
    """A running job whose cause has nothing to tell; that of one on a silent node has a message."""
    return followed.state == State.RUNNING and not followed.status.get("message")


def _state_line(followed: Followed) -> str:
    return f"{followed.state} ({followed.cause})" if followed.cause else followed.state


def _step_line(row: StepRow, followed: Followed, now: float) -> str:
    reward = "" if row.reward is None else f"  reward {row.reward:.3f}"
    speed = _speed(row)
    left = followed.eta_seconds(now)
    time_left = f"  {duration(left)} left" if left is not None and left > 0 else ""
    return f"step {row.step}/{row.total_steps or '?'}{reward}{'  ' + speed if speed else ''}{time_left}"
