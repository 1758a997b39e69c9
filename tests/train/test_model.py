"""The decoder: its size, its parts, and the ways of computing it that must agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rankscope.train.compute_copies import ComputeCopies
from rankscope.train.config import ModelConfig, parameter_count
from rankscope.train.flops import flops_per_token
from rankscope.train.model import Decoder, block_math, initialise
from rankscope.train.norm import forked_norm, rms_norm
from rankscope.train.rotary import rotate, with_positions
from rankscope.train.swiglu import swiglu

SMALL = ModelConfig(layers=3, width=32, heads=4, kv_heads=2, ffn=48, context_length=16)


def built(config: ModelConfig = SMALL, dtype: torch.dtype = torch.float32, rows: int = 64) -> Decoder:
    model = Decoder(config, rows, dtype, loss_chunk_tokens=24)
    initialise(model, seed=5)
    return model


def batch(extra: int = 0) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(64, (3, 17 + extra), generator=torch.Generator().manual_seed(1))
    return tokens[:, :16], tokens[:, 1:]


def gradients(model: Decoder) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        ModelConfig(layers=2, width=64, heads=2, context_length=8, tied_embeddings=False, multi_token_heads=3),
    ],
)
def test_parameters_are_counted_without_building_the_model(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = Decoder(config, 64, torch.float32, 8)
    assert parameter_count(config, 64) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("layers", "width", "heads", "published"),
    [(12, 768, 12, 124_439_808), (48, 1600, 25, 1_557_611_200)],
)
def test_gpt2_sizes_have_the_parameter_counts_of_gpt2(layers: int, width: int, heads: int, published: int) -> None:
    config = ModelConfig(layers=layers, width=width, heads=heads, vocab_size=50304, context_length=1024)
    count = parameter_count(config)
    assert abs(count - published) / published < 0.01
    assert flops_per_token(config, 50304) == 6 * count + 12 * layers * width * 1024


def test_norm_at_a_fork_gives_the_gradients_of_both_ways() -> None:
    torch.manual_seed(3)
    x, past, through = (torch.randn(2, 5, 24) for _ in range(3))
    weight = torch.randn(24)
    found = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    torch.autograd.backward(forked_norm(found[0], found[1], 1e-5), (past, through))
    plain = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    torch.autograd.backward((plain[0] * 1.0, rms_norm(plain[0], plain[1], 1e-5)), (past, through))
    for one, other in zip(found, plain, strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
def test_positions_give_the_gradients_of_turning_queries_and_keys_apart(heads: int, kv_heads: int) -> None:
    torch.manual_seed(4)
    mixed = torch.randn(2, 7, heads + 2 * kv_heads, 12, requires_grad=True)
    again = mixed.detach().clone().requires_grad_()
    angles = torch.randn(7, 1, 6)
    cosine, sine = angles.cos(), angles.sin()
    found = with_positions(mixed, cosine, sine, heads)
    query, key, value = torch.split(again, [heads, kv_heads, kv_heads], dim=2)
    wanted = (rotate(query, cosine, sine), rotate(key, cosine, sine), value)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    seeds = [torch.randn_like(each) for each in wanted]
    torch.autograd.backward(found, seeds)
    torch.autograd.backward(wanted, seeds)
    assert torch.allclose(mixed.grad, again.grad, atol=1e-5)  # type: ignore[arg-type]


def test_a_token_does_not_see_what_comes_after_it() -> None:
    model = built()
    inputs, _ = batch()
    changed = inputs.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 64
    with torch.no_grad():
        before, after = model.logits(inputs), model.logits(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_order_of_tokens_matters() -> None:
    model = built()
    same = torch.full((1, 16), 7)
    same[0, 0], same[0, 1] = 3, 4
    swapped = same.clone()
    swapped[0, 0], swapped[0, 1] = 4, 3
    with torch.no_grad():
        assert not torch.allclose(model.logits(same)[0, -1], model.logits(swapped)[0, -1], atol=1e-6)


def test_each_further_head_predicts_one_token_more_ahead() -> None:
    config = ModelConfig(layers=2, width=32, heads=4, context_length=16, multi_token_heads=3, multi_token_weight=0.5)
    model = built(config)
    inputs, targets = batch(extra=2)
    with torch.no_grad():
        states = model.hidden(inputs)
        single = [
            F.cross_entropy(F.linear(state, model.tok_embed.weight).flatten(0, 1), targets[:, k : k + 16].reshape(-1))
            for k, state in enumerate(states)
        ]
    torch.testing.assert_close(model(inputs, targets).detach(), single[0] + 0.5 * single[1] + 0.5 * single[2])


def test_block_as_one_function_is_the_block_module_by_module() -> None:
    model = built()
    model(*batch()).backward()
    one_by_one = gradients(model)
    model.zero_grad()
    for block in model.blocks():
        block.math = block_math
    model(*batch()).backward()
    assert gradients(model).keys() == one_by_one.keys()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, one_by_one[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_swiglu_of_joined_inputs_has_the_gradient_of_plain_torch(dtype: torch.dtype) -> None:
    both = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(4)).to(dtype).requires_grad_()
    given = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(5)).to(dtype)
    result = swiglu(both)
    result.backward(given)  # type: ignore[no-untyped-call]
    wide = both.detach().double().requires_grad_()
    gate, value = wide.chunk(2, dim=-1)
    expected = F.silu(gate) * value
    expected.backward(given.double())  # type: ignore[no-untyped-call]
    error = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result.double(), expected, rtol=error, atol=error)
    torch.testing.assert_close(both.grad.double(), wide.grad, rtol=error, atol=error)  # type: ignore[union-attr]


def test_recomputed_activations_give_the_same_gradients() -> None:
    model = built()
    model(*batch()).backward()
    kept = gradients(model)
    again = built(replace(SMALL, gradient_checkpointing=True))
    again.train()
    again(*batch()).backward()
    for name, gradient in gradients(again).items():
        torch.testing.assert_close(gradient, kept[name])


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_copies_give_the_masters_the_gradients_that_casting_gives(micro_batches: int) -> None:
    casting, copying = built(dtype=torch.bfloat16), built(dtype=torch.bfloat16)
    copies = ComputeCopies(copying)
    for _ in range(micro_batches):
        casting(*batch()).backward()
        copying(*batch()).backward()
        copies.collect()
    expected, found = gradients(casting), gradients(copying)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0.02 * scale, msg=name)


def test_copies_follow_their_masters() -> None:
    model = built(dtype=torch.bfloat16)
    copies = ComputeCopies(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        stale = model(*batch())
        copies.refresh()
        followed = model(*batch())
        plain = built(dtype=torch.bfloat16)
        for parameter in plain.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(followed, plain(*batch()))
    assert not torch.equal(stale, followed)


def test_plainly_lets_hooks_see_every_module_and_puts_everything_back() -> None:
    model = built(dtype=torch.bfloat16)
    ComputeCopies(model)
    seen: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_args, name=name: seen.append(name))
    with model.plainly():
        model(*batch())
    assert {"tok_embed", "layers.0.attention", "layers.2.feed_forward", "norm"} <= set(seen)
    assert all(block.copies is not None for block in model.blocks())
    assert model.embedding_copy is not None


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    first, second = built(), built()
    deeper = built(replace(SMALL, layers=4))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(first.tok_embed.weight, deeper.tok_embed.weight)
    reseeded = Decoder(SMALL, 64, torch.float32, 24)
    initialise(reseeded, seed=6)
    assert not torch.equal(first.tok_embed.weight, reseeded.tok_embed.weight)
