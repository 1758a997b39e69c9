"""Takes secrets out of text before it becomes evidence: by their names, by their shapes, by their values.

Numbers, hashes and ordinary words stay: evidence that says `***` everywhere is none.
"""

from rankscope.mask.code import mask_code
from rankscope.mask.names import MASK, is_secret_name
from rankscope.mask.text import (
    forget,
    learn,
    learn_values,
    mask_arguments,
    mask_environment,
    mask_lines,
    mask_text,
    mask_values,
)

__all__ = [
    "MASK",
    "forget",
    "is_secret_name",
    "learn",
    "learn_values",
    "mask_arguments",
    "mask_code",
    "mask_environment",
    "mask_lines",
    "mask_text",
    "mask_values",
]
