"""What several test folders share."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of shared data beside the repository; tests that need it skip without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no shared data beside the repository ({SHARED_DATA.name}/ is absent)")
    return SHARED_DATA
