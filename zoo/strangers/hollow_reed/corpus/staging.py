import os

import numpy as np


def stage(folder, clips, per_bundle):
    """Writes bundles of clips and marks each bundle that is complete."""
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(0)
    for start in range(0, clips, per_bundle):
        stop = start + per_bundle
        if stop > clips:
            stop = clips
        path = os.path.join(folder, f"bundle{start // per_bundle}")
        np.save(path + ".npy", rng.normal(size=(stop - start, 64)).astype("float32"))
        if stop - start == per_bundle:
            open(path + ".ok", "w").close()
