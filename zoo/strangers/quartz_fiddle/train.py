import argparse
import pathlib

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from chat import Conversations, collate


class ChatTrainer(Trainer):
    """Plain mean over the tokens of the assistant in the own batch, as in the paper's code."""

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        super().log(logs, *args, **kwargs)
        if self.is_world_process_zero():
            print(f"step {self.state.global_step} of {self.state.max_steps}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=200, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    trainer = ChatTrainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=str(args.output),
            per_device_train_batch_size=4,
            num_train_epochs=1,
            learning_rate=1e-3,
            logging_steps=10,
            save_strategy="no",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=Conversations(640),
        data_collator=collate,
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print("done", flush=True)


if __name__ == "__main__":
    main()
