"""Checkpoints: saving, going on from them, and exporting the weights."""
