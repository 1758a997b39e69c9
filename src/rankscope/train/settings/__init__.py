"""Configuration files, presets and overrides, read into the typed configuration with where each value came from."""

from rankscope.train.settings.loading import Loaded, load_config, preset_names, render_config

__all__ = ["Loaded", "load_config", "preset_names", "render_config"]
