"""A process group set up step by step, each step told, with one backend for all ranks."""
