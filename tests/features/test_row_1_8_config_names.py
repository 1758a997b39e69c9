"""The notes' sections and names, with // comments in JSON."""

from __future__ import annotations

from pathlib import Path

from rankscope.train.settings import load_config

ROW = "1.8"
COMMAND_LINE = "rankscope train --config single_gpu.json"
FILE = """{
    "system": {"device": "cuda", "device_id": 0},
    "model": {"context_length": 256, "init_std": 0.01},
    "training": {
        "batch_size": 8,         // Larger batch since only one GPU
        "grad_accum_nums": 4,    // Less accumulation needed
        "num_workers": 8,        // More data workers for single GPU
        "learning_rate": 1e-4, "max_grad_norm": 0.5, "use_amp": false
    }
}
"""


def test_all_names_of_the_notes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "single_gpu.json"
    path.write_text(FILE)
    config = load_config("production", path, []).config
    assert (config.system.device, config.system.device_id) == ("cuda", 0)
    assert (config.model.context_length, config.model.init_std) == (256, 0.01)
    training = config.training
    assert (training.batch_size, training.grad_accum_nums, training.num_workers) == (8, 4, 8)
    assert (training.learning_rate, training.max_grad_norm, training.use_amp) == (1e-4, 0.5, False)
