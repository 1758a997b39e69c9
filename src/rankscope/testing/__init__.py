"""Distributed tests: `@pytest.mark.ranks(2)` runs the body of a test in ranks, and a failure says why."""
