"""Wrong uses of every verb: one line that says what is wrong and what to write instead, and exit code 2."""

from __future__ import annotations

import os
import re
import shlex
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import RankscopeError
from rankscope.evidence import launchers
from rankscope.evidence.jobs import SeveralJobs
from rankscope.launch import entry, options
from rankscope.launch.folder import make_run_folder
from rankscope.launch.watched import options as watch_options
from rankscope.report import again, top
from rankscope.testing.mark import read_mark

WRONG_USES: tuple[tuple[str, str], ...] = (
    ("trian", "did you mean 'train'?"),
    ("rnu train.py", "did you mean 'run'?"),
    ("--verison", "did you mean '--version'?"),
    ("doctor", "see 'rankscope --help'"),
    ("train --debgu", "did you mean '--debug'?"),
    ("train --max_steps 3", "did you mean '--max-steps'?"),
    ("train --preset prodution", "did you mean 'production'?"),
    ("train --preset", "--preset NAME"),
    ("train --debug --preset micro", "leave one out"),
    ("train --debug --max-steps 0", "--max-steps: training.max_steps must be greater than 0"),
    ("train --debug --max-steps -5", "must be greater than 0"),
    ("train --debug --max-steps ten", "write it in digits"),
    ("train --debug --strategy zero", "'fsdp'"),
    ("train --debug --strategy single --nproc-per-node 2", "use ddp"),
    ("train --debug --nproc-per-node -1", "a job needs at least 1 rank"),
    ("train --debug --nproc-per-node 0", "a job needs at least 1 rank"),
    ("train --debug --nproc-per-node two", "write it in digits"),
    ("train --debug --fault explode", "there are hang, crash, oom, nan, slow, skip"),
    ("train --debug --fault hnag", "did you mean 'hang'? there are hang"),
    ("train --debug --fault hang@rank=9", "the ranks are 0 to 1"),
    ("train --debug --fault hang@step=99", "write hang@rank=1,step=9 at most"),
    ("train --debug --fault hang@rank=x", "write it as hang@rank=1,step=5"),
    ("train --debug --fault hang,rank=1", "there are hang"),
    ("train --debug --config missing.json", "does not exist"),
    ("train --debug --config bad.json", "bad.json:1: not JSON"),
    ("train --debug --config train.py", "ends in .json, .yaml, .yml or .toml"),
    ("train --debug --config folder", "cannot be read"),
    ("train --debug --override batch_size=4", "training.batch_size=4"),
    ("train --debug --override training.batch_size", "write section.name=value"),
    ("train --debug --override training.batchsize=4", "did you mean 'training.batch_size'?"),
    ("train --debug --override training.batch_size=many", "a whole number"),
    ("train --debug --override training.learning_rate=-1", "greater than 0"),
    ("train --debug --override model.heads=7", "must divide model.width"),
    ("train --debug --override trainig.batch_size=4", "did you mean 'training.batch_size'?"),
    ("train --debug --override fsdp.use_orig_params=false", "leave it out"),
    ("train --debug --override models.policy.dtype=int8", "write training.precision="),
    ("train --debug --override data.source=csv", "'jsonl'"),
    ("train --debug --override data.source=text", "data.paths is empty"),
    ("train --debug --override data.source=hf", "data.name is missing"),
    ("train --debug --override system.device=tpu", "'auto', 'cuda', 'cpu'"),
    ("train --debug --override system.device_id=-1", "counted from 0"),
    ("train --debug --override checkpoint.keep_earlier=0", "checkpoint.keep_earlier"),
    ("train --debug --gpus one", "write numbers (0,3), auto, or auto:2"),
    ("train --debug --gpus 0,0", "names a GPU twice"),
    ("train --debug --wait", "--gpus auto:2"),
    ("train --debug extra", "unrecognized arguments: extra"),
    ("train --export out", "no complete checkpoint to export"),
    ("train --replay-nan nothing.pkl", "there is no file 'nothing.pkl'"),
    ("train --replay-nan half.pkl", "give a file .checkpoints/nan_grad_step_N.pt"),
    ("prepare --preset nope", "there are 14b, 32b, debug"),
    ("prepare --debug --preset micro", "not allowed with"),
    ("prepare --override data.source=text", "data.paths is empty"),
    ("prepare --config missing.yaml", "does not exist"),
    ("prepare --debug --cache-dir /proc/nothing", "data.cache_dir"),
    ("diagnose", "PATH"),
    ("diagnose missing.log", "does not exist"),
    ("diagnose --jsn empty.log", "did you mean '--json'?"),
    ("attach --pid 999999999", "999999999"),
    ("attach --pid me", "write it in digits"),
    ("attach --watch 0", "give 1 to 3600 seconds"),
    ("attach --watch soon", "write it in digits"),
    ("check nope", "the steps are basic"),
    ("check ddp --ranks 0", "at least 1 rank"),
    ("check ddp --ranks many", "write it in digits"),
    ("gpus --gpus nope", "write numbers (0,3), auto, or auto:2"),
    ("gpus extra", "unrecognized arguments: extra"),
    ("launch vast", "give --config FILE"),
    ("launch vats", "there is slurm, vast"),
    ("launch vast --num-gpus 0 -- train.py", "give 1 or more"),
    ("launch vast --config missing.yaml", "there is no such file"),
    ("launch slurm", "write rankscope launch slurm"),
    ("launch slurm --nodes 0 -- train.py", "at least 1"),
    ("launch slurm --nodes two -- train.py", "write it in digits"),
    ("launch k8s", "--image"),
    ("launch sky", "write rankscope launch sky"),
    ("run", "there is no script to run: name it after the options"),
    ("run --nproc-per-node 2", "as in rankscope run --nproc-per-node 2 train.py"),
    ("run missing.py", "does not exist"),
    ("run folder", "name the script itself"),
    ("run --nproc-per-node 0 train.py", "at least 1 process"),
    ("run --nproc-per-node -1 train.py", "at least 1 process"),
    ("run --nproc-per-node many train.py", "give a number, or one of auto, gpu, cpu"),
    ("run --on-hang kill train.py", "'auto', 'stop', 'report', 'restart'"),
    ("run --on-nan die train.py", "'report', 'stop'"),
    ("run --stall-after 0 train.py", "at least 1 second, or 'auto'"),
    ("run --stall-after soon train.py", "neither 'auto' nor a number of seconds"),
    ("run --memory-limit 10 train.py", "give at least 256M"),
    ("run --memory-limit lots train.py", "write it as 100G"),
    ("run --comm-timeout 0 train.py", "write 3600 for an hour"),
    ("run --comm-timeout hour train.py", "write 3600 for an hour"),
    ("run --stages loud train.py", "'auto', 'on', 'off'"),
    ("run --gpus 1,1 train.py", "names a GPU twice"),
    ("run --gpus some train.py", "write numbers (0,3), auto, or auto:2"),
    ("run --wait train.py", "--gpus auto:2"),
    ("run --serialize-imports yes train.py", "'auto', 'on', 'off'"),
    ("run --no-python nosuchprogram", "no program 'nosuchprogram'"),
    ("run --no-python --module train.py", "leave one out"),
    ("run --nnodes 0 train.py", "give 1 or more, or MIN:MAX"),
    ("run --nnodes 2:1 train.py", "the smaller first"),
    ("run --nnodes few train.py", "MIN:MAX as in 1:4"),
    ("run --node-rank -1 train.py", "nodes count from 0"),
    ("run --nnodes 2 --node-rank 2 train.py", "give 0 to 1"),
    ("run --master-port 99999999 train.py", "between 1 and 65535"),
    ("run --rdzv-backend c10b train.py", "did you mean 'c10d'?"),
    ("run --max-restarts -1 train.py", "max_restarts"),
    ("run pipe", "a pipe or a device, which only one rank could read"),
    ("run dangling", "does not exist"),
    ("run ''", "the name of the script is empty"),
    ("run -m", "there is no script to run"),
    ("run -m train.py", "write -m train, or leave -m out"),
    ("run -m nosuch.module", "no module 'nosuch' is found"),
    ("run -m .", "as in -m package.train"),
    ("run --module folder/", "write -m folder"),
    ("run --nproc 2 train.py", "did you mean '--nproc-per-node'?"),
    ("run --nproc-per-node 2.5 train.py", "give a number, or one of auto, gpu, cpu"),
    ("run --nproc-per-node gpu train.py", "give a number"),
    ("run --nproc-per-node 1000000 train.py", "give at most 4096"),
    ("run --standalone --nnodes 2 train.py", "--rdzv-endpoint HOST:29400"),
    ("run --master-port http train.py", "write it in digits"),
    ("run --master-addr '' train.py", "give the host of node 0"),
    ("run --master-addr 'a b' train.py", "give the host of node 0"),
    ("run --rdzv-endpoint host:port --rdzv-backend c10d train.py", "write HOST:PORT, as in node-0:29400"),
    ("run --rdzv-endpoint localhost:99999 --rdzv-backend c10d train.py", "write HOST:PORT"),
    ("run --rdzv-conf foo train.py", "must have a value"),
    ("run --run-dir '' train.py", "as in --run-dir runs/first"),
    ("run --run-dir .. train.py", "as in --run-dir runs/first"),
    ("run --run-dir train.py train.py", "that does not exist yet"),
    ("run --run-dir pipe train.py", "that does not exist yet"),
    ("run --log-dir train.py train.py", "--log-dir 'train.py' cannot be written: it is a file; give a folder"),
    ("run --log-dir /proc/x train.py", "give a folder"),
    ("run --grace -1 train.py", "no whole number of seconds"),
    ("run --stall-after nan train.py", "at least 1 second, or 'auto'"),
    ("run --stall-after inf train.py", "at least 1 second, or 'auto'"),
    ("run --comm-timeout -1 train.py", "write 3600 for an hour"),
    ("run --memory-limit 100X train.py", "write it as 100G"),
    ("run --page 99999 train.py", "as in --page 8080"),
    ("run --page -1 train.py", "as in --page 8080"),
    ("run --notify '' train.py", "give an address or a command"),
    ("run --notify ftp://x train.py", "https://HOST"),
    ("run --notify nosuchprogram train.py", "no program 'nosuchprogram'"),
    ("run --no-probe --stages on train.py", "leave --no-probe out"),
    ("run --no-probe --on-nan stop train.py", "leave --no-probe out"),
    ("run --no-probe --on-corrupt stop train.py", "leave --no-probe out"),
    ("run --restart-always train.py", "give --max-restarts 3"),
    ("run --max-restarts many train.py", "write it in digits"),
    ("run --monitor-interval -1 train.py", "give seconds, as 0.1"),
    ("run --monitor-interval nan train.py", "give seconds, as 0.1"),
    ("run --local-ranks-filter 9 train.py", "the ranks of this machine are 0 to 0"),
    ("run --redirects 9 train.py", "--redirects 9: write 1 for stdout"),
    ("run --tee abc train.py", "--tee abc: write 1 for stdout"),
    ("run --signals-to-handle SIGTREM train.py", "did you mean 'SIGTERM'?"),
    ("run --gpus auto:0 train.py", "write auto:2 for the two freest"),
    ("run --no-python train.py", "chmod +x it, or leave --no-python out"),
    ("run --no-python folder", "no program 'folder'"),
    ("watch", "rankscope watch -- accelerate launch train.py"),
    ("watch --", "rankscope watch -- accelerate launch train.py"),
    ("watch -- nosuchprogram", "no program 'nosuchprogram'"),
    ("watch --on-hang restart -- true", "'auto', 'stop', 'report'"),
    ("watch --grace -1 -- true", "no whole number of seconds"),
    ("watch --nproc-per-node 2 -- true", "unrecognized arguments: --nproc-per-node"),
    ("train --debug --config pipe.json", "no plain file"),
    ("train --debug --config list.json", "a configuration is an object"),
    ("train --debug --config deep.json", "nested too deeply"),
    ("train --debug --config binary.yaml", "no text in UTF-8"),
    ("train --debug --config bad.yaml", "bad.yaml:2: not YAML"),
    ("train --debug --config bad.toml", "bad.toml:1: not TOML"),
    ("train --debug --config section.json", "'training' is a section"),
    ("train --debug --config twice.yaml", "first in line 2; leave one out"),
    ("train --debug --config flat.json", "did you mean 'training.batch_size'?"),
    ("train --debug --config not_finite.json", "must be a number, not NaN"),
    ("train --debug --config bad.json --config flat.json", "--config is given twice: leave one out"),
    ("train --debug --preset debug --preset debug", "--preset is given twice"),
    ("train --preset ''", "write --preset production"),
    ("train --debug --override training.batch_size=1e99", "give less than 10^12"),
    ("train --debug --max-steps 99999999999999999999", "give less than 10^12"),
    ("train --debug --max-steps 3 --override training.max_steps=4", "leave one out"),
    ("train --debug --strategy ddp --override system.strategy=fsdp", "leave one out"),
    ("train --debug --override training.learning_rate=nan", "must be a number"),
    ("train --debug --override training.use_amp=maybe", "true or false"),
    ("train --debug --override training.num_workers=-1", "must not be negative"),
    ("train --debug --override training.gradient_accumulation_steps=0", "must be greater than 0"),
    ("train --debug --override fsdp.mixed_precision=maybe", "true or false"),
    ("train --debug --override data.tokenizer=gpt9", "'bytes', 'bpe', 'file', 'hf'"),
    ("train --debug --override data.n_samples=5", "did you mean 'data_sampling.n_samples'?"),
    ("train --debug --fault hang@", "write it as hang@rank=1,step=5"),
    ("train --debug --fault hang@rank=1,rank=0", "rank is given twice"),
    ("train --debug --fault hang --fault crash", "--fault is given twice"),
    ("train --debug --export out --plan", "leave one out"),
    ("train --plan --show-config", "leave one out"),
    ("train --debug --replay-nan folder", "there is no file 'folder'"),
    ("train --debug -- --on-hang kill", "'auto', 'stop', 'report', 'restart'"),
    ("train --debug -- --bogus", "unrecognized arguments: --bogus"),
    ("train --debug -- train.py", "rankscope run train.py runs a program of your own"),
    ("train debug", "did you mean '--debug'?"),
    ("prepare extra", "unrecognized arguments: extra"),
    ("prepare --debug --override data.tokenizer=file", "data.tokenizer_file is missing"),
    ("prepare --debug --override data.tokenizer=hf", "data.tokenizer_name is missing"),
    ("diagnose dangling", "does not exist"),
    ("diagnose - -", "give - only once"),
    ("diagnose --format md empty.log", "unrecognized arguments: --format"),
    ("report", "PATH"),
    ("report missing", "does not exist"),
    ("report empty.log --format pdf", "'html', 'md', 'text', 'json'"),
    ("report empty.log --output folder", "Is a directory"),
    ("report empty.log --output empty.log", "name another file"),
    ("report empty.log --output ''", "- for standard output"),
    ("report empty.log --ouput x", "did you mean '--output'?"),
    ("attach --pid 0", "processes have numbers above 0"),
    ("attach --pid 1.5", "write it in digits"),
    ("attach 4121", "unrecognized arguments: 4121"),
    ("attach --watch 3601", "give 1 to 3600 seconds"),
    ("attach --watch nan", "give 1 to 3600 seconds"),
    ("top missing", "neither a process nor the folder of a run"),
    ("top folder", "no ranks.json there"),
    ("top 999999999", "process 999999999 is gone"),
    ("top ''", "give a run's folder or a process"),
    ("top --onec", "did you mean '--once'?"),
    ("check basci", "did you mean 'basic'?"),
    ("check ddp --ranks 100000", "give at most 1024"),
    ("check basic --ranks 2", "rankscope check ddp --ranks 4"),
    ("check imports --script missing.py", "does not exist"),
    ("check imports --import-seconds 0", "give seconds"),
    ("check imports --import-memory lots", "write 4G or 500M"),
    ("check imports --import-memory 0", "write 4G or 500M"),
    ("check single --repeat 0", "write seconds"),
    ("check basic --repeat", "rankscope check single --repeat 60"),
    ("check ddp --limit -1", "give seconds"),
    ("check ddp --limit nan", "give seconds"),
    ("gpus --gpus auto:0", "write auto:2 for the two freest"),
    ("launch skyy -- train.py", "did you mean 'sky'?"),
    ("launch slurm --gpus-per-node 0 -- train.py", "give 1 or more"),
    ("launch slurm --time soon --dry-run -- train.py", "as 2-00:00:00 for two days"),
    ("launch slurm --name '' --dry-run -- train.py", "--name is empty"),
    ("launch slurm --sbatch '' --dry-run -- train.py", "as exclusive or mem=64G"),
    ("launch slurm --output folder --dry-run -- train.py", "Is a directory"),
    ("launch sky --nodes 0 -- train.py", "--nodes must be at least 1"),
    ("launch sky --gpus 2 -- train.py", "--gpu H100"),
    ("launch k8s --image '' -- train.py", "--image is empty"),
    ("launch k8s --image img --shm lots -- train.py", "write 16Gi or 500Mi"),
    ("launch k8s --image img --max-restarts -1 -- train.py", "at least 0"),
    ("launch vast --max-price -1 -- train.py", "give a number above 0"),
    ("launch vast --min-reliability 2 -- train.py", "from 0 to 1, as 0.98"),
    ("launch vast --workdir missing -- train.py", "is no folder"),
    ("launch vast --dry-run -- missing.py", "there is no 'missing.py' in --workdir"),
    ("launch vast --remote-folder there --dry-run -- train.py", "give a whole path"),
    ("launch vast --num-gpus 2 --dry-run -- --nproc-per-node 4 train.py", "each rank needs a GPU"),
    ("launch vast --fetch /etc --dry-run -- train.py", "inside of the work folder"),
    ("attach --pid 1", "leave --pid out to have the job found"),
    ("diagnose /", "give the run's folder, or files that a job left"),
    ("report /proc", "give the run's folder, or files that a job left"),
    ("diagnose https://host/train.log", "is an address, not a path: download it first"),
    ("report s3://bucket/run", "is an address, not a path: download it first"),
    ("diagnose file:///tmp/no.log", "write /tmp/no.log"),
    ("diagnose node-1:/runs/train", "copy it first (scp"),
    ("diagnose 'nccl_trace_rank_*'", "no file matches 'nccl_trace_rank_*'"),
    ("diagnose '~/runs'", "write $HOME, or no quotes"),
    ("run https://host/train.py", "download it first"),
    ("train --debug --config https://host/my.json", "download it first"),
    ("check imports --script https://host/train.py", "download it first"),
    ("train --debug --config blank.json", "is empty: write sections of keys and values"),
    ("prepare --debug --config blank.yaml", "is empty: write sections of keys and values"),
    ("launch vast --config bad.json --dry-run", "bad.json:1: not JSON"),
    ("launch vast --config flat.json --dry-run", "did you mean 'training.batch_size'?"),
    ("launch vast --config blank.yaml --dry-run", "is empty"),
    ("launch slurm -- missing.py", "the script 'missing.py' does not exist"),
    ("launch slurm --dry-run -- --nproc-per-node 2 missing.py", "the script 'missing.py' does not exist"),
    ("launch sky -- missing.py", "the script 'missing.py' does not exist"),
    ("diagnose ''", "the name of a file or folder is empty"),
    ("attach --pid -5", "pgrep -af python"),
    ("run train.ipynb", "jupyter nbconvert --to script"),
    ("run train.sh", "rankscope watch -- bash train.sh"),
    ("run python train.py", "leave it out, as in rankscope run train.py"),
    ("run python3.11 train.py", "leave it out, as in rankscope run train.py"),
    ("run torchrun --nproc-per-node 2 train.py", "rankscope watch -- torchrun"),
    ("run --page 0.0.0.0 train.py", "--page 0.0.0.0:8080"),
    ("run -n 2 train.py", "did you mean '--nproc-per-node'?"),
    ("run train.py:main", "does not exist"),
    ("run --lang de train.py", "'en', 'ko'"),
    ("run --prefix {gpx} train.py", "write {rank}, {local_rank}, {gpu} or {host}"),
    ("watch train.py", "rankscope watch -- python train.py"),
    ("RANKSCOPE_LANG=xx diagnose empty.log", "give one of en, ko"),
    ("check all", "leave it out for all"),
    ("launch slurm train.py --dry-run", "write rankscope launch slurm --dry-run ... -- train.py"),
    ("launch vast train.py --auto-shutdown", "stands behind the script and would go to it"),
    ("launch sky train.py --gpus=8", "stands behind the script and would go to it"),
    ("launch slurm --name 'a b' --dry-run -- train.py", "write a-b"),
    ("launch slurm --partition 'long gpu' --dry-run -- train.py", "write long-gpu"),
    ("launch slurm --warn 99999999 --dry-run -- train.py", "65535 seconds"),
    ("launch k8s --image 'a b' -- train.py", "REGISTRY/NAME:TAG"),
    ("launch sky --gpu H100 -- train.py", "as --gpus 8"),
    ("launch vast --config train.py --dry-run", "ends in .json, .yaml, .yml or .toml"),
    ("launch slurm --dry-run -- --nproc-per-node 8", "as in -- --nproc-per-node 8 train.py"),
    ("launch vast --dry-run -- --nproc-per-node 2", "name it after the options"),
    ("launch sky -- --nproc-per-node=2", "name it after the options"),
    ("launch k8s --image img -- --comm-debug", "name it after the options"),
    ("run --master-addr http://host train.py", "give the host of node 0, as node-0"),
    ("run --memory-limit 99999999T train.py", "more than an address space holds"),
    ("run --stall-after 1e12 train.py", "--on-hang report stops nothing"),
    ("run --grace 999999999999 train.py", "more than 100 days"),
    ("launch vast --env NOT_SET --dry-run -- train.py", "it is not set here"),
    ("launch vast --gpu '' --dry-run -- train.py", "--gpu is empty"),
    ("launch vast --image '' --dry-run -- train.py", "--image is empty"),
    ("launch vast --fetch '' --dry-run -- train.py", "--fetch is empty"),
    ("launch vast --disk nan --dry-run -- train.py", "give a number above 0"),
    ("launch vast --max-price inf --dry-run -- train.py", "give a number above 0"),
    ("launch k8s --image img --name '' -- train.py", "--name is empty"),
    ("launch slurm --nodes 2 --dry-run -- --nnodes 4 train.py", "leave --nnodes out"),
    ("launch slurm --gpus-per-node 2 --dry-run -- --nproc_per_node=8 train.py", "each rank needs one"),
    ("launch k8s --image img --gpus 2 -- --nproc-per-node 8 train.py", "each rank needs one"),
    ("check imports --script folder", "'folder' is a folder: name the file in it"),
    ("train --debug --override checkpoint.dir=", "checkpoint.dir is empty: name a folder"),
    ("train --debug --override data.cache_dir=' '", "data.cache_dir is empty: name a folder"),
    ("prepare --debug --cache-dir ''", "data.cache_dir is empty: name a folder"),
    ("train --debug --export ''", "write --export weights"),
    ("train --plan --nproc-per-node 0", "a job needs at least 1 rank"),
    ("train --debug --override 'training.batch_size=4 training.max_steps=3'", "an --override of its own"),
    ("train --debug --override training.batch_size=4,training.max_steps=3", "an --override of its own"),
    ("train -debug", "did you mean '--debug'?"),
    ("train --preset Debug", "did you mean 'debug'?"),
    ("train --debug --resume", "no|auto|PATH"),
    ("prepare --debug --cache-dir train.py", "write another data.cache_dir"),
    ("prepare --debug --override data.source=jsonl --override data.paths=notes.txt", "notes.txt, line 1: not JSON"),
    ("NUM_GPUS=two train --debug", "NUM_GPUS=two is no number of GPUs: give 1 or more, or unset it"),
    ("GPU_RANK=x train --debug", "write GPU_RANK=3, or unset it"),
    ("NCCL_TIMEOUT=soon train --debug", "must be a whole number"),
    ("DDP_BACKEND=ncll train --debug", "write nccl, gloo or auto"),
    ("PET_NNODES=zero run train.py", "give a number of machines"),
    ("PET_NPROC_PER_NODE=two run train.py", "give a number, or one of auto, gpu, cpu"),
)

CONFIGURATIONS = {
    "bad.json": "{",
    "list.json": "[]",
    "flat.json": '{"batch_size": 4}',
    "section.json": '{"training": 3}',
    "not_finite.json": '{"training": {"learning_rate": NaN}}',
    "deep.json": '{"a":' * 100_000,
    "bad.yaml": "a: [1,\n",
    "twice.yaml": "training:\n  batch_size: 4\n  batch_size: 8\n",
    "bad.toml": "x = \n",
    "blank.json": "",
    "blank.yaml": "\n  \n",
    "nothing.yaml": "# training:\n#   batch_size: 4\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NUM_GPUS", "GPU_RANK", "NCCL_TIMEOUT", "DDP_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "train.sh").write_text("python train.py\n")
    (tmp_path / "train.ipynb").write_text("{}")
    (tmp_path / "notes.txt").write_text("no JSON\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.log").write_text("")
    for name, text in CONFIGURATIONS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("pipe", "pipe.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "half.pkl").write_bytes(b"\x80\x04garbage")
    monkeypatch.setattr(entry, "run_prepared", prepared)
    monkeypatch.setattr(entry, "run", parsed)
    monkeypatch.setattr(entry, "watch", watched)
    monkeypatch.setattr(launchers, "may_lead", lambda _pid: False)  # whatever the first process here is


def prepared(arguments: Callable[[], list[str]]) -> int:
    """As the real one says it, without the guard: that forks."""
    arguments()
    return 0


def parsed(arguments: list[str]) -> int:
    """What `run` refuses before it starts anything."""
    chosen = options.parse(arguments)
    options.launch_config(chosen)
    if chosen.run_dir is not None:
        make_run_folder(chosen.run_dir, chosen.torch.training_script)
    return 0


def watched(arguments: list[str]) -> int:
    """The same for `watch`."""
    watch_options.parse(arguments)
    return 0


@pytest.mark.parametrize(("command", "instead"), WRONG_USES, ids=[use for use, _ in WRONG_USES])
def test_a_wrong_use_is_one_line_with_the_word_to_write_instead(
    command: str, instead: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command)
    while words[0].partition("=")[0].replace("_", "").isupper():  # VARIABLE=value, as in a shell
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if line.strip()]
    # What was decided before the mistake was met is said too; the mistake is the last line.
    assert lines[-1].startswith("rankscope: "), lines
    assert instead in lines[-1]
    assert told.out == ""
    assert "Traceback" not in told.err


def test_there_are_more_than_fifty() -> None:
    assert len(WRONG_USES) > 310
    assert len({use for use, _ in WRONG_USES}) == len(WRONG_USES)


def test_errors_have_the_code_of_a_mistake() -> None:
    with pytest.raises(RankscopeError) as refused:
        options.parse(["missing.py"])
    assert refused.value.exit_code == 2


def test_an_option_after_the_script_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "train.py", "--nproc-per-node", "2"]) == 0
    assert "options of 'rankscope run' stand before the script" in capsys.readouterr().err
    Path("takes.py").write_text("parser.add_argument('--nnodes')\n")
    assert main(["run", "takes.py", "--nnodes", "2"]) == 0
    assert capsys.readouterr().err == ""


def test_a_configuration_that_sets_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--debug", "--config", "nothing.yaml", "--show-config"]) == 0
    assert "nothing.yaml changes nothing" in capsys.readouterr().err
    assert main(["train", "--debug", "--show-config"]) == 0
    assert capsys.readouterr().err == ""


def test_a_folder_that_takes_long_to_read_says_what_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "_QUIET_S", 0.0)
    Path("folder/some.log").write_text("nothing to tell\n")
    assert main(["diagnose", "folder"]) == 3
    assert "reading on: 1 files so far, now in folder" in capsys.readouterr().err


def test_a_report_for_a_pipe_or_a_device_leaves_it_as_it_is() -> None:
    """`--output /dev/stdout`, or `>(less)`: it is written to, and no file takes its place."""
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()))
    reader.start()
    assert main(["report", "empty.log", "--format", "md", "--output", "pipe"]) == 0
    reader.join(20)
    assert stat.S_ISFIFO(os.lstat("pipe").st_mode)
    assert b"evidence of a job" in read[0]


def test_a_program_below_a_process_with_several_jobs_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def several(_pids: list[int]) -> None:
        raise SeveralJobs(())

    monkeypatch.setattr(top, "job_of_pids", several)
    assert main(["top", str(os.getpid())]) == 2
    assert "say which one: rankscope top PID" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mark", "instead"),
    [
        (pytest.mark.ranks(), "takes the number of ranks"),
        (pytest.mark.ranks(2, 3), "takes the number of ranks"),
        (pytest.mark.ranks(2, tiemout=3), "and no tiemout"),
        (pytest.mark.ranks("two"), "give 1 rank or more"),
        (pytest.mark.ranks(2.5), "give 1 rank or more"),
        (pytest.mark.ranks(1_000_000), "give at most 1024"),
        (pytest.mark.ranks(2, timeout=-1), "give seconds, as timeout=300"),
        (pytest.mark.ranks(2, timeout="soon"), "give seconds, as timeout=300"),
        (pytest.mark.ranks(2, stall=float("nan")), "give seconds, as stall=5"),
        (pytest.mark.ranks(2, backend=""), "write backend='gloo' or 'nccl'"),
        (pytest.mark.ranks(2, backend="ncll"), "did you mean 'nccl'?"),
        (pytest.mark.ranks(True), "give 1 rank or more"),
    ],
    ids=str,
)
def test_a_wrong_mark_says_what_to_write(mark: pytest.MarkDecorator, instead: str) -> None:
    with pytest.raises(ValueError, match=re.escape(instead)):
        read_mark(mark.mark)
