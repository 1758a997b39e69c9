"""Every rank gets the same number of batches, in one global order that the number of ranks does not change."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rankscope.errors import UsageError  # noqa: E402
from rankscope.train.config import DataConfig, DataSamplingConfig, ModelConfig, RunConfig  # noqa: E402
from rankscope.train.data import PreparedDataset, prepare  # noqa: E402
from rankscope.train.data.loader import TokenLoader  # noqa: E402
from rankscope.train.data.order import BatchOrder  # noqa: E402
from searching import searched  # noqa: E402


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("data")
    text = folder / "text.txt"
    text.write_bytes(bytes(range(32, 127)) * 12)
    return _prepare(text, folder)


def _prepare(text: Path, folder: Path, heads: int = 1) -> PreparedDataset:
    config = RunConfig(
        model=ModelConfig(context_length=16, multi_token_heads=heads),
        data=DataConfig(
            source="text", paths=(str(text),), tokenizer="bytes", cache_dir=str(folder / "cache"), workers=1
        ),
        data_sampling=DataSamplingConfig(n_samples=50),
    )
    return prepare(config, lambda _: None)


def _loader(
    prepared: PreparedDataset, rank: int = 0, world: int = 1, batch: int = 4, accumulate: int = 1
) -> TokenLoader:
    return TokenLoader(
        prepared, batch_size=batch, rank=rank, world_size=world, seed=7, device="cpu", grad_accum_nums=accumulate
    )


def _steps(loaders: list[TokenLoader], accumulate: int, steps: int) -> list[list[int]]:
    """Samples of each step over all ranks, rank after rank."""
    sources = [iter(loader) for loader in loaders]
    found = []
    for _ in range(steps):
        found.append([int(i) for source in sources for _ in range(accumulate) for i in next(source).sample_ids])
    for loader in loaders:
        loader.close()
    return found


@pytest.mark.parametrize(
    ("world", "batch", "accumulate"), [(1, 8, 1), (1, 2, 4), (2, 4, 1), (2, 2, 2), (4, 1, 2), (8, 1, 1)]
)
def test_the_global_order_does_not_depend_on_ranks_or_accumulation(
    prepared: PreparedDataset, world: int, batch: int, accumulate: int
) -> None:
    loaders = [_loader(prepared, rank, world, batch, accumulate) for rank in range(world)]
    order = BatchOrder(prepared.manifest.samples, 7, 8)
    assert _steps(loaders, accumulate, 20) == [order.step(step).tolist() for step in range(20)]


def test_each_epoch_has_every_sample_once_in_another_order(prepared: PreparedDataset) -> None:
    loader = _loader(prepared, batch=5)
    ids = [int(i) for batch in itertools.islice(loader, 20) for i in batch.sample_ids]
    loader.close()
    assert sorted(ids[:50]) == sorted(ids[50:]) == list(range(50))
    assert ids[:50] != ids[50:]
    assert ids[:50] != list(range(50))


def test_inputs_and_targets_are_the_samples_tokens(prepared: PreparedDataset) -> None:
    text = bytes(range(32, 127)) * 12
    loader = _loader(prepared)
    batch = next(iter(loader))
    loader.close()
    assert batch.inputs.shape == batch.targets.shape == (4, 16)
    assert batch.inputs.dtype == torch.int64
    for row, sample in enumerate(batch.sample_ids.tolist()):
        assert bytes(batch.inputs[row].tolist()) == text[sample * 16 : sample * 16 + 16]
        assert bytes(batch.targets[row].tolist()) == text[sample * 16 + 1 : sample * 16 + 17]


def test_with_more_heads_targets_reach_further(prepared: PreparedDataset, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(32, 127)) * 12)
    further = _prepare(text, tmp_path, heads=4)
    assert further.manifest.key != prepared.manifest.key
    loader = _loader(further)
    batch = next(iter(loader))
    loader.close()
    assert batch.targets.shape == (4, 19)
    assert torch.equal(batch.targets[:, :15], batch.inputs[:, 1:])


@pytest.mark.parametrize("threads", [0, 1])
def test_resuming_in_the_middle_of_an_epoch_at_another_world_size_goes_on_exactly(
    prepared: PreparedDataset, threads: int
) -> None:
    order = BatchOrder(prepared.manifest.samples, 7, 8)
    loader = TokenLoader(prepared, batch_size=4, rank=0, world_size=2, seed=7, device="cpu", threads=threads)
    batches = iter(loader)
    for _ in range(9):
        next(batches)
    state = loader.state_dict()
    loader.close()
    assert state["samples"] == 72
    again = _loader(prepared, batch=2, accumulate=4)
    again.load_state_dict(state)
    found = list(itertools.islice(again, 8))
    again.close()
    assert [batch.step for batch in found] == [9] * 4 + [10] * 4
    assert [int(i) for batch in found[:4] for i in batch.sample_ids] == order.step(9).tolist()


def test_a_step_that_was_begun_is_read_again(prepared: PreparedDataset) -> None:
    loader = _loader(prepared, batch=2, accumulate=4)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    assert loader.state_dict()["samples"] == 8
    loader.close()


def test_other_data_and_another_seed_are_refused(prepared: PreparedDataset) -> None:
    loader = _loader(prepared)
    state = loader.state_dict()
    with pytest.raises(UsageError, match="other data"):
        loader.load_state_dict({**state, "dataset": "0"})
    with pytest.raises(UsageError, match=r"system\.seed=8"):
        loader.load_state_dict({**state, "seed": 8})


@searched(40)
@given(st.integers(1, 600), st.integers(0, 2**31), st.integers(1, 64))
def test_any_number_of_samples_is_shuffled_without_loss(samples: int, seed: int, batch: int) -> None:
    order = BatchOrder(samples, seed, batch)
    steps = -(-samples // batch)
    found = [each for step in range(steps) for each in order.step(step).tolist()]
    assert sorted(found[:samples]) == list(range(samples))
