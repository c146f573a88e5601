from pathlib import Path

import pytest

from tests.integration.trainer.run_support import make_model


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model in `model`; jobs, rows and checkpoints of the session's runs go there too."""
    path = tmp_path_factory.mktemp("run")
    make_model(path / "model")
    return path
