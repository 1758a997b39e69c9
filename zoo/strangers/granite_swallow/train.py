"""Small Llama on stone inscriptions with transformers.Trainer, evaluation and checkpoints."""
import argparse
import random
import time

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

CONTEXT, VOCAB = 20, 64


class Inscriptions(Dataset):
    def __init__(self, seed, n):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            start, stride = rng.randrange(VOCAB), rng.choice([1, 3, 5])
            self.rows.append([(start + stride * k) % VOCAB for k in range(CONTEXT)])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = torch.tensor(self.rows[i])
        return {"input_ids": ids, "labels": ids.clone()}


class ProofReader(TrainerCallback):
    """After each evaluation the main process writes a few lines and reads them again."""

    def __init__(self, seconds=10.0):
        self.seconds = seconds

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        if not state.is_world_process_zero:
            return
        net = getattr(model, "module", model)
        begin = time.monotonic()
        lines = 0
        was_training = net.training
        net.eval()
        with torch.no_grad():
            while time.monotonic() - begin < self.seconds:
                ids = torch.randint(VOCAB, (1, 4))
                for _ in range(CONTEXT - 4):
                    ids = torch.cat([ids, net(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
                lines += 1
        net.train(was_training)
        print(f"proof-reading took {time.monotonic() - begin:.1f} s for {lines} lines", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    out = ap.parse_args().out
    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=out,
        max_steps=80,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        eval_strategy="steps",
        eval_steps=40,
        save_strategy="steps",
        save_steps=40,
        save_total_limit=1,
        logging_steps=20,
        learning_rate=2e-3,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    with args.main_process_first(desc="reading inscriptions"):
        train, test = Inscriptions(1, 1500), Inscriptions(2, 90)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=train,
        eval_dataset=test,
        callbacks=[ProofReader()],
    )
    out = trainer.train()
    print(f"rank {args.process_index} loss {out.training_loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
