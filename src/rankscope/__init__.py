"""Rankscope: torchrun that tells you why."""

__version__ = "0.1.0"
