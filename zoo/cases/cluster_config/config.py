"""The settings of the cluster and of the model, as one value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    nodes: int = 1
    ranks_per_node: int = 3
    width: int = 32
    lr: float = 1e-2
    steps: int = 60

    @property
    def world_size(self):
        return self.nodes * self.ranks_per_node
