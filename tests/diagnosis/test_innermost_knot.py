"""The innermost knot of a wait-for graph, against its definition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.diagnosis.wait_graph import WaitGraph, innermost_knot


def graph_of(edges: dict[int, frozenset[int]]) -> WaitGraph:
    return WaitGraph(states={}, edges=edges, absent=(), deadlocked=frozenset(edges))


def by_definition(edges: dict[int, frozenset[int]]) -> frozenset[int]:
    smallest = frozenset(edges)
    for rank in sorted(edges):
        reached: set[int] = set()
        queue = list(edges[rank])
        while queue:
            if (other := queue.pop()) in edges and other not in reached:
                reached.add(other)
                queue += edges[other]
        if rank in smallest and rank in reached and len(reached) < len(smallest):
            smallest = frozenset(reached)
    return smallest


GRAPHS = st.dictionaries(
    st.integers(0, 8), st.frozensets(st.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=9
)


@settings(max_examples=400, deadline=None)
@given(GRAPHS)
def test_it_is_that_of_the_definition(edges: dict[int, frozenset[int]]) -> None:
    assert innermost_knot(graph_of(edges)) == by_definition(edges)


def test_a_ring_of_thousands_is_one_knot() -> None:
    ring = {rank: frozenset({(rank + 1) % 4096}) for rank in range(4096)}
    assert innermost_knot(graph_of(ring)) == frozenset(range(4096))
