"""Harnesses: who drives an episode. `loop` is the plain agent loop."""
