"""Random faults over 50 jobs, on a control plane of its own. `make chaos` runs the same for 30 minutes."""

import os

import pytest

from tests.apiserver.chaos.run import Chaos

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]
SECONDS = 45.0


def test_every_job_ends_where_its_history_leads(tmp_path):
    """No rule is broken at any moment of the history, and no object is left behind."""
    Chaos(tmp_path, int(os.environ.get("GRPO_CHAOS_SEED", "1"))).run(SECONDS)
