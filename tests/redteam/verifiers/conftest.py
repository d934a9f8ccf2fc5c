"""The judge's surroundings for hacks of verifiers."""

from judging import bench  # noqa: F401 - a fixture
