"""Environments: tasks, tools, the default episode, and the built-in ones."""

from quintain.envs import tasks, tools

__all__ = ["tasks", "tools"]
