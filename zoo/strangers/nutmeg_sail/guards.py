class SaturationGuard:
    """Stops a run whose activations sit at the clipping bound."""

    def __init__(self, limit, bound=6.0):
        self.limit = limit
        self.bound = bound

    def hook(self, name):
        def check(module, inputs, output):
            share = (output.abs() >= self.bound).float().mean().item()
            if share > self.limit:
                raise ValueError(f"{name}: {share:.1%} of the activations are saturated")

        return check
