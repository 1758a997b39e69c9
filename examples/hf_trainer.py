"""A tiny GPT-2 with Hugging Face's Trainer, tokenizer and dataset made on the spot. Nothing here knows of Rankscope.

torchrun --nproc-per-node 2 examples/hf_trainer.py --steps 5        or `rankscope run` for torchrun
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    GPT2Config,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

TEXT = "the ranks of a job agree call by call until the first place where they do not"
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {
        "type": "WordLevel",
        "vocab": {word: number for number, word in enumerate(["[PAD]", "[UNK]", *sorted(set(TEXT.split()))])},
        "unk_token": "[UNK]",
    },
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tiny GPT-2 with Hugging Face's Trainer.")
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--root", type=Path, default=Path("outputs"), help="folder for data and results")
    return parser.parse_args()


def write_once(path: Path, text: str) -> Path:
    """Each rank may write it; whoever comes last replaces it by the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
    return path


def main() -> None:
    arguments = parse_arguments()
    folder = write_once(arguments.root / "tokenizer" / "tokenizer.json", json.dumps(TOKENIZER)).parent
    write_once(folder / "tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, pad_token="[PAD]", unk_token="[UNK]")
    lines = write_once(arguments.root / "text.txt", f"{TEXT}\n" * 256)
    cache = arguments.root / f"cache-{os.environ.get('RANK', '0')}"
    rows: Any = load_dataset("text", data_files=str(lines), split="train", cache_dir=str(cache))
    dataset: Dataset = rows.map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text"])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        GPT2Config(
            vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(arguments.root / "results"),
            max_steps=arguments.steps,
            per_device_train_batch_size=arguments.batch_size,
            use_cpu=not torch.cuda.is_available(),
            ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
            report_to="none",
            logging_steps=10,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=dataset,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()


if __name__ == "__main__":
    main()
