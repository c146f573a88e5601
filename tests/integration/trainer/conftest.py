import os
from pathlib import Path

import pytest

from grpo_trainer.tools import smollm2
from tests.integration.trainer.run_support import make_model


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model in `model`; jobs, rows and checkpoints of the session's runs go there too."""
    path = tmp_path_factory.mktemp("run")
    make_model(path / "model")
    return path


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct, in GRPO_SMOLLM2_DIR where that is set, so that runs share one conversion."""
    path = Path(os.environ.get("GRPO_SMOLLM2_DIR") or tmp_path_factory.mktemp("smollm2"))
    if not (path / "config.json").exists():
        smollm2.convert(path)
    return path
