"""The judge's surroundings for tests of verifiers."""

from judging import bench  # noqa: F401 - a fixture
