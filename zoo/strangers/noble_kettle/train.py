import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from shards import ArchiveDataset


class InOrderTrainer(Trainer):
    """Shards are read in order, so each one is opened once."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class Progress(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            short = {k: round(v, 4) for k, v in logs.items() if k in ("loss", "eval_loss", "eval_accuracy")}
            print(f"step {state.global_step} {short}", flush=True)


def accuracy(pred):
    guess = np.argmax(pred.predictions, axis=-1)[:, :-1]
    return {"accuracy": float((guess == pred.label_ids[:, 1:]).mean())}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        output_dir=os.path.join(sys.argv[1], "run"),
        use_cpu=True,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        dataloader_num_workers=1,
        num_train_epochs=1,
        learning_rate=2e-3,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=30,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = InOrderTrainer(
        model=model,
        args=args,
        train_dataset=ArchiveDataset(1024, cold=[9], recall_s=16.0),
        eval_dataset=ArchiveDataset(96),
        compute_metrics=accuracy,
        callbacks=[Progress()],
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print("trained", trainer.state.global_step, "steps", flush=True)


if __name__ == "__main__":
    main()
