import sys

from transformers import TrainerCallback


class StepBudget(TrainerCallback):
    """Ends the run cleanly when the share of the cluster time is used up."""

    def __init__(self, max_tokens, tokens_per_step):
        self.max_tokens = max_tokens
        self.tokens_per_step = tokens_per_step

    def on_step_end(self, args, state, control, **kwargs):
        used = state.global_step * self.tokens_per_step
        if state.is_world_process_zero and used >= self.max_tokens:
            print(f"token budget reached at step {state.global_step}, leaving", flush=True)
            sys.exit(0)
        return control
