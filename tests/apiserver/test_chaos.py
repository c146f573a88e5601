"""Random faults over 50 jobs, on a control plane of its own. `make chaos` runs the same for 30 minutes.

Only where GRPO_CHAOS_SEED is set: what a seed brings depends on the machine's pace too, so a failure says something of
the operator or the judge, and nothing of the change under test.
"""

import os

import pytest

from tests.apiserver.chaos.run import Chaos

SEED = os.environ.get("GRPO_CHAOS_SEED")
pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.timeout(400),
    pytest.mark.skipif(SEED is None, reason="set GRPO_CHAOS_SEED, or run `make chaos`"),
]
SECONDS = 45.0


def test_every_job_ends_where_its_history_leads(tmp_path):
    """No rule is broken at any moment of the history, and no object is left behind."""
    Chaos(tmp_path, int(SEED or 0)).run(SECONDS)
