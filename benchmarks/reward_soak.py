"""The reward pool under functions that do everything wrong: `python -m benchmarks.reward_soak`.

Of the calls, 1 % each raise, hang, end their process, allocate 4 GB, return a wrong shape, print a megabyte and fork a
child; all others work for `work` seconds (asleep, so that a busy machine does not make the work itself longer) and
return a number of their own. The ideal time is

    (good calls * work + hanging calls * timeout) / processes

as if starting a process anew, passing rows and answers, and everything else took nothing.
"""

import argparse
import os
import random
import time
from collections import Counter
from dataclasses import dataclass

from grpo_api.rewards.rows import RewardRow
from grpo_api.spec.reward import PythonReward, RewardFunction, RewardSpec
from grpo_trainer.rewards.pool import RewardPool

FATES = {
    "raise": "exception",
    "hang": "timeout",
    "exit": "crash",
    "allocate": "exception",
    "shape": "exception",
    "print": None,
    "fork": None,
}
"""What a call does, and the cause that it is counted under; None where it has a score all the same."""
_SOURCE = """
import os, time
def compute_score(solution_str, ground_truth, extra_info, data_source=None):
    time.sleep(extra_info["work"])
    match solution_str:
        case "raise": raise KeyError("gone")
        case "hang":
            while True: pass
        case "exit": os._exit(3)
        case "allocate": bytearray(4 << 30)
        case "shape": return [ground_truth, ground_truth]
        case "print": print("x" * (1 << 20))
        case "fork":
            if os.fork() == 0 and ground_truth % 2:
                time.sleep(3600)  # others go on, and return from this call a second time
    return ground_truth
"""


@dataclass
class Soak:
    """What came of it."""

    seconds: float
    ideal: float
    lost: int
    """Rows whose outcome is not what its call did: another's score, or none where it had one."""
    errors: Counter[tuple[str, str]]
    expected: Counter[tuple[str, str]]
    left_over: int
    """Processes of the pool that live half a minute after it was closed."""

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal


def soak(calls: int, workers: int, work: float, timeout: float, seed: int = 0, share: float = 0.01) -> Soak:
    """Score one batch of so many rows."""
    each = round(calls * share)
    fates = [fate for fate in FATES for _ in range(each)]
    fates += ["good"] * (calls - len(fates))
    random.Random(seed).shuffle(fates)
    works = {"good": work, "print": work, "fork": work}
    rows = [RewardRow("", fate, float(index), "", {"work": works.get(fate, 0.0)}) for index, fate in enumerate(fates)]
    spec = RewardSpec(
        functions=[RewardFunction(name="fn", python=PythonReward(source=_SOURCE))],
        workers=workers,
        timeout_seconds=timeout,
        worker_memory="1Gi",
    )
    pool = RewardPool(spec)
    try:
        pool.check(rows[fates.index("good")])
        begin = time.monotonic()
        result = pool.score(rows)
        seconds = time.monotonic() - begin
        sessions = {worker.process.pid for lane in pool._crew.lanes for worker in lane.workers}
    finally:
        pool.close()
    wanted = [None if FATES.get(fate) else float(index) for index, fate in enumerate(fates)]
    expected = Counter(("fn", cause) for fate in fates if (cause := FATES.get(fate)))
    busy = sum(works.get(fate, 0.0) for fate in fates) + each * timeout
    killed = time.monotonic()
    while (left_over := _alive_in(sessions)) and time.monotonic() < killed + 30:
        time.sleep(0.05)  # a process that was killed takes its time to end
    lost = sum(one != other for one, other in zip(result.rewards, wanted, strict=True))
    return Soak(seconds, busy / workers, lost, result.errors, expected, len(left_over))


def _alive_in(sessions: set[int]) -> list[int]:
    """Processes of these sessions that have not ended."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                state, _, _, session = file.read().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(session) in sessions and state not in "ZX":
            found.append(int(entry))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--work", type=float, default=0.02, help="seconds of a good call")
    parser.add_argument("--timeout", type=float, default=1.0, help="reward.timeoutSeconds")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = soak(given.calls, given.workers, given.work, given.timeout, given.seed)
    print(
        f"{given.calls} calls on {given.workers} processes: {found.seconds:.1f} s, ideal {found.ideal:.1f} s, "
        f"ratio {found.ratio:.2f}; {given.calls / found.seconds:.0f} calls a second; {found.lost} lost or out of "
        f"order; {found.left_over} processes left over; failures {dict(found.errors)}, expected {dict(found.expected)}"
    )
    if found.lost or found.left_over or found.errors != found.expected or found.ratio > 1.5:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
