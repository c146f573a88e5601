"""What a rank's failure means, in words for the job's status. The texts of deaths are those of Ray 2.60."""

import pytest
from ray.exceptions import ActorDiedError, RayActorError, RayError, RayTaskError

from grpo_trainer.checkpoint import CheckpointError
from grpo_trainer.errors import PeerLostError, UserInputError
from grpo_trainer.ray_gang import _unwrapped

DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tactor_id: ca300e7802c3\n"
    "\tpid: 22412\n\tnamespace: 677f00d0-93e1\n\tip: 192.0.2.2\n"
)
EXITED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called"
)
NODE_DIED = "The actor died because its node has died. Node Id: 7835\n\tthe actor's node was terminated unexpectedly"


def task_error(cause: Exception) -> RayError:
    """As `ray.get` raises it."""
    text = f'Traceback (most recent call last):\n  File "worker.py", line 7, in resume\n{type(cause).__name__}: {cause}'
    error = RayTaskError("resume", text, cause, proctitle="ray::Worker.resume", pid=1, ip="192.0.2.2")
    return error.as_instanceof_cause()


def test_a_workers_own_exception_is_told_in_its_own_words() -> None:
    own = UserInputError("CheckpointMismatch", "/c is of another model")
    assert _unwrapped(task_error(own), 1, 0) is own
    error = task_error(CheckpointError("/c is damaged"))
    assert "\x1b[36m" in str(error)
    found = _unwrapped(error, 3, 1)
    assert (type(found), str(found)) == (CheckpointError, "/c is damaged")
    assert found.__cause__ is error  # the log's traceback
    assert found.__notes__ == ["on rank 3, node rank 1"]


def test_an_exception_that_cannot_travel_is_told_by_its_last_line() -> None:
    class Local(Exception):
        def __reduce__(self):  # type: ignore[no-untyped-def]
            raise TypeError("no")

    found = _unwrapped(task_error(Local("own words")), 0, 0)
    assert str(found) == "Local: own words"


@pytest.mark.parametrize(
    ("text", "init", "expected"),
    [
        (
            DIED + EXITED,
            False,
            "died: it was killed, such as for lack of memory, or crashed "
            "(Ray says: Worker unexpectedly exits with a connection error code 2. End of file.)",
        ),
        (
            DIED + NODE_DIED,
            False,
            "died: The actor died unexpectedly before finishing this task. The actor died because its node has died. "
            "Node Id: 7835 the actor's node was terminated unexpectedly",
        ),
        (
            "The actor died because of an error raised in its creation task, \x1b[36mray::Worker.__init__()\x1b[39m\n"
            "  File x\nValueError: in init",
            True,
            "did not start: ValueError: in init",
        ),
    ],
)
def test_a_death_is_one_sentence(text: str, init: bool, expected: str) -> None:
    died = RayActorError("ca300e7802c3", text, actor_init_failed=init)
    found = _unwrapped(died, 5, 2)
    assert isinstance(found, PeerLostError)
    assert (found.reason, found.message) == ("WorkerDied", f"the worker of rank 5 (pod of node rank 2) {expected}")
    assert isinstance(_unwrapped(ActorDiedError(), 0, 0), PeerLostError)


def test_lost_connections_are_lost_peers() -> None:
    found = _unwrapped(task_error(RuntimeError("[gloo] Connection closed by peer")), 1, 0)
    assert isinstance(found, PeerLostError)
    assert found.message == "rank 1 lost its peers: [gloo] Connection closed by peer"
