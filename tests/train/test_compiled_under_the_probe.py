"""torch.compile sees whole models under the launcher too: that of `rankscope train`, and one that makes module lists
while it runs."""

from __future__ import annotations

import pytest

from conftest import Rankscope

SCRIPT = """
    import torch
    from torch._dynamo.testing import CompileCounter

    from rankscope.train.config import ModelConfig
    from rankscope.train.model import Decoder, block_math, initialise

    class Sliced(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers[1:]:
                x = layer(x)
            return x

    torch.compile(Sliced(), fullgraph=True, backend="aot_eager")(torch.ones(2, 4))
    config = ModelConfig(layers=2, width=32, heads=4, ffn=48, context_length=16)
    model = Decoder(config, 64, torch.float32, 24)
    initialise(model, 5)
    blocks, whole = CompileCounter(), CompileCounter()
    compiled = torch.compile(block_math, fullgraph=True, backend=blocks)
    for block in model.blocks():
        block.math = compiled
    tokens = torch.randint(64, (3, 17))
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    for block in model.blocks():
        block.math = block_math
    model.__dict__["hidden"] = torch.compile(model.hidden, fullgraph=True, backend=whole)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    print(f"graphs {blocks.frame_count} {whole.frame_count}", whole.op_count > blocks.op_count > 20)
"""


@pytest.mark.slow
def test_model_is_compiled_in_one_graph_under_the_launcher(rankscope: Rankscope) -> None:
    ended = rankscope.run("--stages", "on", rankscope.script(SCRIPT), nproc=1)
    text = (ended.out + ended.err).decode()
    assert ended.code == 0, text
    assert "graphs 1 1 True" in text
    # The compiler of the first model asks autograd for its backward graph, which is not yet a backward pass.
    assert text.index("compilation 1;") < text.index("first backward"), text
