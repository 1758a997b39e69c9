import pickle

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


def export_weights(model, path):
    """Collects the full weights on the first rank and streams them to `path`."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if dist.get_rank() == 0:
        stream = open(path, "wb", buffering=0)
        for name, tensor in state.items():
            stream.write(pickle.dumps((name, tensor.numpy())))
        stream.close()
    dist.barrier()
