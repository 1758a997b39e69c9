"""Reads the user's source: conditions, branches and loops around a line, ways past it, where a loss was computed."""
