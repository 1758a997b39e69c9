import importlib

_LOADED = {}


def reader_for(kind):
    """The reader module of that file kind, imported when the first such file comes up."""
    if kind not in _LOADED:
        _LOADED[kind] = importlib.import_module(f"{__name__}.{kind}")
    return _LOADED[kind]
