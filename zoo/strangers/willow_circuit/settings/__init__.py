from types import SimpleNamespace

import yaml


def _space(node):
    if isinstance(node, dict):
        return SimpleNamespace(**{k: _space(v) for k, v in node.items()})
    return node


def load(path, overrides=()):
    with open(path) as fh:
        tree = yaml.safe_load(fh)
    for item in overrides:
        dotted, value = item.split("=", 1)
        *parents, leaf = dotted.split(".")
        node = tree
        for p in parents:
            node = node[p]
        node[leaf] = yaml.safe_load(value)
    return _space(tree)
