import functools
import logging
import os
import sys

import yaml

log = logging.getLogger("conf")


class ConfigError(Exception):
    pass


class Node:
    """Read-only attribute access to a YAML tree."""

    def __init__(self, tree, path=""):
        self._tree, self._path = tree, path

    def __getattr__(self, key):
        return self.select(key)

    def select(self, key):
        where = f"{self._path}.{key}".lstrip(".")
        if key not in self._tree:
            raise ConfigError(f"no entry '{where}' (known: {', '.join(self._tree)})")
        value = self._tree[key]
        return Node(value, where) if isinstance(value, dict) else value


def apply(tree, override):
    dotted, value = override.split("=", 1)
    *parents, leaf = dotted.split(".")
    for p in parents:
        tree = tree.setdefault(p, {})
    tree[leaf] = yaml.safe_load(value)


def main(config):
    def decorate(fn):
        @functools.wraps(fn)
        def run():
            rank = os.environ.get("RANK", "0")
            logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(levelname)s %(name)s: %(message)s")
            with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), config)) as fh:
                tree = yaml.safe_load(fh)
            for arg in sys.argv[1:]:
                apply(tree, arg)
            try:
                return fn(Node(tree))
            except ConfigError as err:
                log.error("configuration: %s", err)
                sys.exit()

        return run

    return decorate
