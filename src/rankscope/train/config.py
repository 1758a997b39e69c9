"""What a training run can be told: sections of typed fields, each followed by what it means. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rankscope.errors import UsageError

Strategy = Literal["auto", "single", "ddp", "fsdp", "hsdp"]
Precision = Literal["auto", "bf16", "fp16", "fp32"]


@dataclass(frozen=True, slots=True)
class SystemConfig:
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """What to train on. `auto`: GPUs where there are any, else the CPU."""
    device_id: int | None = None
    """The one GPU of a run in a single process; null: each rank takes the GPU of its local rank."""
    strategy: Strategy = "auto"
    """How ranks share the work. `auto`: `single` for one rank, `ddp` where model and optimizer fit on one device, else
    `fsdp`. `hsdp` shards inside groups of `shard_size` ranks and replicates between them."""
    shard_size: int | None = None
    """Ranks that share one copy of the model with `hsdp`; null: the ranks of one node."""
    seed: int = 1337
    """Decides initial weights and the order of the data."""
    deterministic: bool = False
    """Only deterministic kernels, at some cost in speed; needed for bit-equal repetition on GPUs."""
    timeout_s: int = 1800
    """After this long a collective that does not finish is an error of torch's own."""
    threads: int | None = None
    """CPU threads per rank; null: the machine's cores divided by its ranks."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    layers: int = 12
    """Decoder blocks."""
    width: int = 768
    """Size of the residual stream."""
    heads: int = 12
    """Query heads of an attention block; must divide `width`."""
    kv_heads: int | None = None
    """Key and value heads; must divide `heads`. null: as many as `heads`."""
    ffn: int | None = None
    """Inner width of the SwiGLU feed-forward block; null: 8/3 of `width`, rounded up to a multiple of 64."""
    vocab_size: int | None = None
    """Rows of the embedding; null: the tokenizer's size rounded up to a multiple of 64."""
    context_length: int = 1024
    """Tokens of one sample."""
    tied_embeddings: bool = True
    """One matrix for the embedding and the output."""
    multi_token_heads: int = 1
    """Tokens ahead that are predicted at each place. 1: the next one only. Each further head is one more block, beside
    the last one, under the same norm and output matrix."""
    multi_token_weight: float = 1.0
    """Weight of each further head's loss against the first head's."""
    rope_theta: float = 10000.0
    """Base of the rotary position frequencies."""
    norm_eps: float = 1e-5
    """Added under the root in RMSNorm."""
    init_std: float = 0.02
    """Standard deviation of initial weights; the last matrix of each block gets it divided by sqrt(2 * layers)."""
    gradient_checkpointing: bool = False
    """Compute each block's activations again in the backward pass instead of keeping them: saves memory, costs up to a
    third more time."""
    compile: Literal["auto", "off", "blocks", "whole"] = "auto"
    """torch.compile. `blocks`: one decoder block, compiled once and used for all. `whole`: all blocks in one graph,
    which takes longer to compile and fuses more; not with `fsdp`. `auto`: on GPUs `whole` for one rank and at most 24
    layers, else `blocks`; `off` on the CPU."""
    max_autotune: bool = False
    """Let the compiler try several kernels for each matrix product: minutes more at the start, sometimes faster."""
    products: Literal["auto", "torch", "tried"] = "auto"
    """Kernels of large matrix products. `tried`: the fastest of those that cuBLASLt offers, found in the first step,
    which takes half a minute longer; another run may find others. `torch`: what torch takes. `auto`: `tried` where one
    process trains a compiled model on an NVIDIA GPU, unless `system.deterministic` is set."""
    attention: Literal["auto", "cudnn", "flash", "efficient", "math", "torch"] = "auto"
    """Backend of scaled_dot_product_attention. `auto`: cuDNN on Hopper and later GPUs, else `torch`, which
    leaves the choice to torch."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    batch_size: int = 8
    """Samples of one micro batch of one rank."""
    grad_accum_nums: int = 1
    """Micro batches of one optimizer step; the global batch is batch_size * grad_accum_nums * ranks."""
    num_workers: int = 1
    """Threads that prepare batches ahead; 0: the training thread does it itself."""
    max_steps: int = 10000
    """Optimizer steps of the whole run."""
    learning_rate: float = 3e-4
    """After the warm-up, at its highest."""
    min_learning_rate: float = 3e-5
    """At the end of the cosine."""
    warmup_steps: int = 100
    """Steps in which the learning rate rises from zero."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0: never."""
    weight_decay: float = 0.1
    """For matrices; vectors such as norms' weights have none."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW."""
    adam_eps: float = 1e-8
    """Of AdamW."""
    use_amp: bool = True
    """false: everything in fp32, whatever `precision` says."""
    precision: Precision = "auto"
    """What matrices are multiplied in; weights and optimizer state stay fp32. `auto`: bf16 where the GPU has it, else
    fp16 on GPUs and fp32 on the CPU. `fp16` scales the loss."""
    loss_chunk_tokens: int | None = None
    """Tokens whose logits exist at one time; null: chosen from the vocabulary so that they take about 1 GiB."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    source: Literal["builtin", "text", "jsonl", "parquet", "hf", "random"] = "builtin"
    """`builtin`: sources and docstrings of Python's standard library, which every machine has. `hf`: a dataset of the
    Hugging Face hub. `random`: tokens that mean nothing, for measuring speed."""
    paths: tuple[str, ...] = ()
    """Files and globs of `text`, `jsonl` and `parquet`."""
    name: str | None = None
    """Dataset of `hf`, as the hub spells it."""
    subset: str | None = None
    """Configuration of that dataset, where it has several."""
    split: str = "train"
    """Part of that dataset."""
    text_field: str = "text"
    """Field of a record, or column, that holds the text."""
    tokenizer: Literal["bytes", "bpe", "file", "hf"] = "bpe"
    """`bytes`: one token a byte. `bpe`: trained on this very corpus. `file`: a tokenizer.json. `hf`: by name."""
    tokenizer_file: str | None = None
    """The tokenizer.json of `file`."""
    tokenizer_name: str | None = None
    """The tokenizer of `hf`, as the hub spells it."""
    tokenizer_vocab_size: int = 8192
    """Tokens that a `bpe` tokenizer learns."""
    cache_dir: str = "./cache/datasets"
    """Where prepared datasets are kept, one folder each."""
    workers: int | None = None
    """Processes that prepare; null: one a core."""


@dataclass(frozen=True, slots=True)
class DataSamplingConfig:
    n_samples: int | None = None
    """Samples to prepare at most; null: all there are."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    dir: str = ".checkpoints"
    """Where checkpoints and the dumps of non-finite steps go."""
    every: int = 1000
    """Steps between checkpoints; 0: only at the end and on SIGTERM."""
    at_end: bool = True
    """Save after the last step."""
    keep_last: int = 3
    """Complete checkpoints to keep; older ones are removed."""
    keep_earlier: int | None = 3
    """Earlier runs in the same directory whose checkpoints are kept when a run starts from the beginning there; those
    of older ones are removed. null: all are kept."""
    asynchronous: bool = True
    """Write in the background while training goes on."""
    resume: str = "no"
    """`no`, `auto` (the newest complete checkpoint in `dir`, if there is one), or the path of a checkpoint."""
    export_safetensors: bool = False
    """Write the final weights as model.safetensors too."""


@dataclass(frozen=True, slots=True)
class ForensicsConfig:
    enabled: bool = True
    """Watch for values that are not finite, report where they began, and save that step's tensors."""
    stop_after: int = 1
    """Non-finite steps in a row, none of which is applied to the weights, after which the run ends; with fp16 the loss
    scale is lowered first, and steps that only exceeded it do not count."""
    values_shown: int = 5
    """Values of each bad tensor in the report."""
    layers_shown: int = 10
    """Bad tensors that the report shows in full; all are counted and named in the files."""


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    every: int = 10
    """Steps between lines; the first and the last step always have one."""
    dir: str = "logs"
    """Where metrics.jsonl goes; a relative path lies in the run's folder under `rankscope train`. From `logs` there,
    report.html draws its curves."""
    metrics: bool = True
    """Write metrics.jsonl, one line of JSON a step."""
    plots: bool = True
    """Leave report.html in the run's folder after a good run too, with loss and throughput over the steps."""
    progress_bar: Literal["auto", "on", "off"] = "auto"
    """`auto`: on a terminal."""
    debug: bool = False
    """Say more: how the process group is made, every parameter's size, every step's line."""
    wandb: bool = False
    """Log to Weights & Biases, from rank 0 only."""
    wandb_project: str = "rankscope"
    """Project there."""
    tensorboard: bool = False
    """Write TensorBoard events, from rank 0 only."""


@dataclass(frozen=True, slots=True)
class ProfileConfig:
    enabled: bool = False
    """Record torch.profiler traces of a few steps on rank 0."""
    first_step: int = 10
    """Where the recording begins."""
    steps: int = 3
    """How many steps it covers."""
    dir: str = "profile"
    """Where traces go, relative to `logging.dir`."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run. `checked` says whether it can work."""

    system: SystemConfig = field(default_factory=SystemConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    data_sampling: DataSamplingConfig = field(default_factory=DataSamplingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    forensics: ForensicsConfig = field(default_factory=ForensicsConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A value, or two together, that cannot work."""

    key: str
    """`section.field`, the one to change."""
    reason: str
    """What is wrong and what to write instead, to be read after the key."""


def ffn_width(model: ModelConfig) -> int:
    """Inner width of the feed-forward blocks."""
    if model.ffn is not None:
        return model.ffn
    return -(-8 * model.width // 192) * 64


def kv_heads(model: ModelConfig) -> int:
    """Key and value heads of an attention block."""
    return model.heads if model.kv_heads is None else model.kv_heads


def embedding_rows(model: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding; refuses a vocabulary that would not fit."""
    if model.vocab_size is None:
        return -(-tokenizer_size // 64) * 64
    if tokenizer_size > model.vocab_size:
        raise UsageError(
            f"model.vocab_size is {model.vocab_size}, but the tokenizer has {tokenizer_size} tokens: "
            f"write model.vocab_size={-(-tokenizer_size // 64) * 64}, or leave it out"
        )
    return model.vocab_size


def parameter_count(model: ModelConfig, rows: int | None = None) -> int:
    """Parameters of the model, a tied embedding counted once; `rows` where `vocab_size` is null."""
    vocabulary = rows if model.vocab_size is None else model.vocab_size
    if vocabulary is None:
        raise ValueError("the vocabulary's size is not known")
    head_size = model.width // model.heads
    attention = model.width * head_size * (2 * model.heads + 2 * kv_heads(model))
    block = attention + 3 * model.width * ffn_width(model) + 2 * model.width
    embeddings = vocabulary * model.width * (1 if model.tied_embeddings else 2)
    return (model.layers + model.multi_token_heads - 1) * block + embeddings + model.width


def impossibilities(config: RunConfig) -> list[Impossible]:
    """What in the configuration cannot work, in the order of the sections."""
    return [Impossible(key, reason) for key, wrong, reason in _rules(config) if wrong]


def checked(config: RunConfig) -> RunConfig:
    """The configuration itself; raises UsageError for the first thing that cannot work."""
    found = impossibilities(config)
    if found:
        raise UsageError(f"{found[0].key}: {found[0].reason}")
    return config


def _rules(config: RunConfig) -> list[tuple[str, bool, str]]:
    system, model, training, checkpoint = config.system, config.model, config.training, config.checkpoint
    positive: list[tuple[str, float]] = [
        ("model.layers", model.layers),
        ("model.width", model.width),
        ("model.heads", model.heads),
        ("model.context_length", model.context_length),
        ("model.multi_token_heads", model.multi_token_heads),
        ("training.batch_size", training.batch_size),
        ("training.grad_accum_nums", training.grad_accum_nums),
        ("training.max_steps", training.max_steps),
        ("training.learning_rate", training.learning_rate),
        ("checkpoint.keep_last", checkpoint.keep_last),
        ("logging.every", config.logging.every),
        ("forensics.stop_after", config.forensics.stop_after),
        ("system.timeout_s", system.timeout_s),
        ("profile.steps", config.profile.steps),
    ]
    not_negative: list[tuple[str, float]] = [
        ("training.num_workers", training.num_workers),
        ("training.warmup_steps", training.warmup_steps),
        ("training.max_grad_norm", training.max_grad_norm),
        ("training.weight_decay", training.weight_decay),
        ("training.min_learning_rate", training.min_learning_rate),
        ("model.init_std", model.init_std),
        ("checkpoint.every", checkpoint.every),
        ("system.seed", system.seed),
    ]
    optional: list[tuple[str, int | None]] = [
        ("model.kv_heads", model.kv_heads),
        ("model.ffn", model.ffn),
        ("model.vocab_size", model.vocab_size),
        ("system.shard_size", system.shard_size),
        ("system.threads", system.threads),
        ("training.loss_chunk_tokens", training.loss_chunk_tokens),
        ("data_sampling.n_samples", config.data_sampling.n_samples),
        ("data.workers", config.data.workers),
        ("checkpoint.keep_earlier", config.checkpoint.keep_earlier),
    ]
    heads = max(1, model.heads)
    data = config.data
    folders = [
        ("data.cache_dir", data.cache_dir),
        ("checkpoint.dir", checkpoint.dir),
        ("logging.dir", config.logging.dir),
        ("profile.dir", config.profile.dir),
    ]
    return [
        *((key, not path.strip(), "is empty: name a folder, or leave it out") for key, path in folders),
        *((key, value <= 0, f"must be greater than 0, not {value}") for key, value in positive),
        *((key, value < 0, f"must not be negative, and is {value}") for key, value in not_negative),
        *(
            (key, value is not None and value <= 0, f"must be greater than 0, or null, not {value}")
            for key, value in optional
        ),
        ("system.device_id", (system.device_id or 0) < 0, f"is {system.device_id}: GPUs are counted from 0"),
        (
            "system.device_id",
            system.device_id is not None and system.strategy not in ("auto", "single"),
            f"is the GPU of a run in one process, but system.strategy is '{system.strategy}': leave it out, and choose "
            "GPUs with --gpus",
        ),
        (
            "system.shard_size",
            system.shard_size is not None and system.strategy != "hsdp",
            f"is only for system.strategy 'hsdp', not '{system.strategy}'",
        ),
        (
            "model.heads",
            model.width % heads != 0,
            f"must divide model.width ({model.width}), and {model.heads} does not",
        ),
        (
            "model.heads",
            model.width % heads == 0 and (model.width // heads) % 2 == 1,
            f"leaves {model.width // heads} numbers a head; rotary positions need an even number",
        ),
        (
            "model.kv_heads",
            model.kv_heads is not None and model.kv_heads > 0 and heads % model.kv_heads != 0,
            f"must divide model.heads ({model.heads}), and {model.kv_heads} does not",
        ),
        (
            "model.multi_token_heads",
            model.multi_token_heads >= model.context_length,
            f"is {model.multi_token_heads}, not less than model.context_length ({model.context_length})",
        ),
        (
            "training.min_learning_rate",
            training.min_learning_rate > training.learning_rate,
            f"is {training.min_learning_rate:g}, above training.learning_rate ({training.learning_rate:g})",
        ),
        (
            "training.betas",
            not all(0 <= beta < 1 for beta in training.betas),
            f"are {training.betas}: each must be at least 0 and below 1",
        ),
        (
            "profile.first_step",
            config.profile.enabled and not 0 <= config.profile.first_step < training.max_steps,
            f"is {config.profile.first_step}, and steps count from 0 to {training.max_steps - 1} "
            "(training.max_steps): nothing would be recorded",
        ),
        (
            "data.paths",
            data.source in ("text", "jsonl", "parquet") and not data.paths,
            f"is empty: data.source '{data.source}' needs files or globs",
        ),
        ("data.name", data.source == "hf" and not data.name, "is missing: data.source 'hf' needs a dataset's name"),
        (
            "data.tokenizer_file",
            data.tokenizer == "file" and not data.tokenizer_file,
            "is missing: data.tokenizer 'file' needs the path of a tokenizer.json",
        ),
        (
            "data.tokenizer_name",
            data.tokenizer == "hf" and not data.tokenizer_name,
            "is missing: data.tokenizer 'hf' needs a name of the hub",
        ),
    ]
