"""How much arithmetic a token costs, and how much the device could do."""

from __future__ import annotations

import re

from rankscope.train.config import ModelConfig, parameter_count

FORMULA = "MFU = tokens/s * (6 N + 12 L C T) / (devices * peak), N parameters, L layers, C width, T context length"

# Dense peak of bf16 and fp16 tensor cores in TFLOP/s, as the makers' data sheets give it. The first name found counts.
_PEAKS: tuple[tuple[str, float], ...] = (
    ("GB200", 2500.0),
    ("GB300", 2500.0),
    ("B200", 2250.0),
    ("B300", 2250.0),
    ("H200 NVL", 835.5),
    ("H200", 989.5),
    ("GH200", 989.5),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.5),
    ("H100", 989.5),
    ("H800", 989.5),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("A40", 149.7),
    ("A30", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("RTX 6000 Ada", 364.2),
    ("RTX A6000", 154.8),
    ("RTX 5090", 209.5),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
    ("V100", 125.0),
    ("T4", 65.0),
    ("MI300X", 1307.4),
    ("MI250X", 383.0),
)


def flops_per_token(model: ModelConfig, rows: int) -> float:
    """Forward and backward: 6 N + 12 L C T. A further head reads the output matrix once more, and counts as a layer."""
    layers = model.layers + model.multi_token_heads - 1
    parameters = parameter_count(model, rows)
    if not model.tied_embeddings:
        parameters -= rows * model.width  # looking a row up costs no arithmetic
    parameters += (model.multi_token_heads - 1) * rows * model.width
    return 6.0 * parameters + 12.0 * layers * model.width * model.context_length


def peak_flops(device_name: str) -> float | None:
    """FLOP/s of one device in bf16; None for one that is not in the table, as a mobile or cut-down relative of one."""
    for name, tera in _PEAKS:
        if re.search(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9]| (Ti|D|SUPER|Laptop|Max-Q)\b)", device_name):
            return tera * 1e12
    return None
