"""Where a followed job's news come from: a watch on the job and the head pod's log, each in a thread of its own."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_api import names
from grpoctl.cluster import Cluster, Object
from grpoctl.errors import CliError, Silence

RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class JobSeen:
    """The job as the API server has it now."""

    job: Object


@dataclass(frozen=True)
class JobGone:
    """The job does not exist any more."""


@dataclass(frozen=True)
class LogLine:
    """A line of the head pod of one attempt."""

    attempt: int
    text: str


@dataclass(frozen=True)
class Trouble:
    """Something cannot be read at the moment; None: it can again."""

    what: str
    message: str | None


Update = JobSeen | JobGone | LogLine | Trouble
Put = Callable[[Update], Any]


class JobSource(Protocol):
    """News of one job. Calls of `put` may come from any thread."""

    def start(self, put: Put) -> None:
        """Begin to report."""

    def finish(self, seconds: float) -> None:
        """The job has ended: report the rest of its log and stop, within `seconds`."""


def attempt_of(pod: Object) -> int:
    return names.label_number(pod["metadata"], names.LABEL_ATTEMPT)


def trainer_has_started(pod: Object) -> bool:
    return any(
        status["name"] == names.TRAINER_CONTAINER and {"running", "terminated"} & status.get("state", {}).keys()
        for status in pod.get("status", {}).get("containerStatuses") or []
    )


def has_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


class LogReader:
    """The log of one rank across restarts of its pod and of the connection, each line once."""

    def __init__(self, cluster: Cluster, pod_name: str) -> None:
        self._cluster, self._pod_name = cluster, pod_name
        self._uid, self._last, self._complete = "", "", False

    def read(self, put: Callable[[int, str], Any], *, follow: bool) -> bool:
        """Report what is there beyond the last call as (attempt, line), and, with `follow`, what comes.

        Returns whether the pod exists and its trainer has started.
        """
        pod = self._cluster.find_pod(self._pod_name)
        if pod is None or not trainer_has_started(pod):
            return False
        if pod["metadata"]["uid"] != self._uid:
            self._uid, self._last, self._complete = pod["metadata"]["uid"], "", False
        if self._complete:
            return True
        try:
            for timestamp, text in self._cluster.pod_log(self._pod_name, follow=follow):
                if timestamp > self._last:
                    self._last = timestamp
                    put(attempt_of(pod), text)
        except Silence:
            if follow:
                return True  # a step may take longer than a read
            raise
        self._complete = has_ended(pod)
        return True


class ClusterSource:
    """News from the API server. Faults of the connection are reported and tried again, without end."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._finishing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, put: Put) -> None:
        for work in (self._watch, self._tail):
            thread = threading.Thread(target=work, args=(put,), name=work.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, seconds: float) -> None:
        self._finishing.set()
        self._threads[1].join(seconds)

    def _watch(self, put: Put) -> None:
        uid = None
        while not self._finishing.is_set():
            began = time.monotonic()
            try:
                job = self._cluster.find_job(self._name)
                if job is None or (uid is not None and job["metadata"]["uid"] != uid):
                    put(JobGone())
                    return
                uid = job["metadata"]["uid"]
                put(JobSeen(job))
                for kind, seen in self._cluster.watch_job(self._name):
                    put(Trouble("watch", None))
                    if kind == "DELETED" and seen["metadata"]["uid"] == uid:
                        put(JobGone())
                        return
                    put(JobSeen(seen))
            except CliError as error:
                put(Trouble("watch", str(error)))
            self._finishing.wait(max(0.0, RETRY_SECONDS - (time.monotonic() - began)))

    def _tail(self, put: Put) -> None:
        reader = LogReader(self._cluster, names.pod_name(self._name, 0))
        while True:
            last_time = self._finishing.is_set()
            try:
                reader.read(lambda attempt, text: put(LogLine(attempt, text)), follow=not last_time)
                put(Trouble("log", None))
            except CliError as error:
                put(Trouble("log", str(error)))
            if last_time:
                return
            self._finishing.wait(RETRY_SECONDS)
