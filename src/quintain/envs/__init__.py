"""Environments: tasks, tools, the default episode, and the built-in ones."""
