"""Fine-tunes a small GPT-2-like model with the HF Trainer from a freshly converted checkpoint."""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments

from convert import convert_checkpoint


class Arithmetic(Dataset):
    def __init__(self, n=256):
        gen = torch.Generator().manual_seed(0)
        start = torch.randint(0, 20, (n, 1), generator=gen)
        self.ids = (start + torch.arange(16)) % 64

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    out = sys.argv[1]
    torch.set_num_threads(1)
    args = TrainingArguments(
        output_dir=os.path.join(out, "run"),
        use_cpu=True,
        per_device_train_batch_size=8,
        max_steps=30,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    converted = os.path.join(out, "converted")
    print(f"[rank {args.process_index}] arguments parsed, preparing the base model", flush=True)
    if args.process_index == 0 and not os.path.isdir(converted):
        convert_checkpoint(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2), converted)
    model = AutoModelForCausalLM.from_pretrained(converted)
    trainer = Trainer(model=model, args=args, train_dataset=Arithmetic())
    result = trainer.train()
    if trainer.is_world_process_zero():
        print("train loss", round(result.training_loss, 4), flush=True)


if __name__ == "__main__":
    main()
