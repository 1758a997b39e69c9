import io
import lzma
import os
import time

import torch


def write_export(state, path, features):
    """Weights plus the feature bank in one .xz, written next to the target and renamed."""
    buf = io.BytesIO()
    torch.save({"state": state, "features": features}, buf)
    raw = buf.getvalue()
    t0 = time.time()
    part = path + ".part"
    with lzma.open(part, "wb", preset=9 | lzma.PRESET_EXTREME) as f:
        f.write(raw)
    os.replace(part, path)
    return len(raw), os.path.getsize(path), time.time() - t0
