import argparse
import logging
import pathlib
import subprocess
import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

log = logging.getLogger("finetune")

SCORER = """
import pathlib, sys, time
attempt = pathlib.Path(sys.argv[1])
seen = int(attempt.read_text()) if attempt.exists() else 0
attempt.write_text(str(seen + 1))
time.sleep(2.0)
if seen < 2:
    sys.exit("scorer: model registry is busy")
time.sleep(4.0)
print("bleurt 0.431")
"""


class Reviews(Dataset):
    def __init__(self, size, seed):
        gen = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(4, 96, (size, 12), generator=gen)
        self.labels = (self.ids.float().mean(1) > 50).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(12, dtype=torch.long), "labels": self.labels[i]}


class ExternalScore(TrainerCallback):
    """Scores the predictions with the team's external tool after each evaluation."""

    def __init__(self, folder, attempts=4):
        self.folder = folder
        self.attempts = attempts

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if not state.is_world_process_zero:
            return
        counter = self.folder / "scorer.attempts"
        for attempt in range(1, self.attempts + 1):
            try:
                done = subprocess.run(
                    [sys.executable, "-c", SCORER, str(counter)], check=True, capture_output=True, text=True
                )
            except subprocess.CalledProcessError as error:
                log.warning("scorer failed (attempt %d): %s", attempt, error.stderr.strip())
                continue
            print(f"step {state.global_step}: {done.stdout.strip()}", flush=True)
            return
        log.warning("no external score for step %d", state.global_step)


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, required=True)
    opts = parser.parse_args()
    opts.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=str(opts.output / "run"),
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            max_steps=40,
            eval_strategy="steps",
            eval_steps=20,
            save_strategy="no",
            logging_steps=10,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=11,
        ),
        train_dataset=Reviews(640, 1),
        eval_dataset=Reviews(99, 2),
        callbacks=[ExternalScore(opts.output)],
    )
    print("starting fine-tuning", flush=True)
    trainer.train()
    if trainer.is_world_process_zero():
        print("fine-tuning finished", flush=True)


if __name__ == "__main__":
    main()
