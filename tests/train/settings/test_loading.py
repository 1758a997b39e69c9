"""Configurations: every mistake is refused with the key, the place and the nearest right name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.errors import UsageError
from rankscope.train.config import RunConfig, parameter_count
from rankscope.train.settings import load_config, preset_names, render_config

PARAMETERS = {
    "debug": 467_584,
    "production": 1_577_191_424,
    "stable": 1_577_191_424,
    "micro": 45_617_664,
    "14b": 14_769_689_600,
    "32b": 32_763_417_600,
    "mtp-3b": 3_367_676_928,
    "gpt2-124m": 123_587_328,
    "gpt2-1.5b": 1_560_116_800,
    "llama-8b": 8_030_261_248,
}


def test_there_is_every_preset() -> None:
    assert set(preset_names()) == set(PARAMETERS)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_every_preset_loads_and_has_the_parameters_it_promises(name: str) -> None:
    loaded = load_config(name, None, [])
    model = loaded.config.model
    # The debug preset's embedding follows its tokenizer: 256 bytes and the end of a text, in multiples of 64.
    assert parameter_count(model, rows=320) == PARAMETERS[name]
    assert loaded.origin["model.layers"] == f"preset {name}"
    assert loaded.origin["system.timeout_s"] == "default"
    assert (
        loaded.config.data.tokenizer_vocab_size <= (model.vocab_size or 1 << 30)
        or loaded.config.data.tokenizer == "bytes"
    )


def test_the_parameters_are_those_of_the_architecture_counted_by_hand() -> None:
    """mtp-3b: 25 blocks and 3 more for further heads, an embedding and an output of 32,000 rows, the last norm."""
    block = 4 * 3072 * 3072 + 3 * 3072 * 8192 + 2 * 3072
    assert (25 + 3) * block + 2 * 32_000 * 3072 + 3072 == PARAMETERS["mtp-3b"]
    grouped = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert 32 * grouped + 2 * 128_256 * 4096 + 4096 == PARAMETERS["llama-8b"]


def test_debug_and_production_are_as_long_as_documented() -> None:
    for name, layers, steps in (("debug", 2, 10), ("production", 32, 10_000)):
        config = load_config(name, None, []).config
        assert (config.model.layers, config.training.max_steps) == (layers, steps)


FILES = {
    "run.json": """{
    // Larger, since there is only one GPU
    "system": {"device": "cpu"}, /* all
    of it */
    "training": {
        "batch_size": 4,    // "quoted" // twice
        "learning_rate": 1e-3,
        "betas": [0.9, 0.99],
    },
    "data": {"paths": ["http://x//y", "b,}"], "source": "text"},
}
""",
    "run.yaml": """
system:
  device: cpu   # here
training:
  batch_size: 4
  learning_rate: 1e-3
  betas: [0.9, 0.99]
data: {paths: ["http://x//y", "b,}"], source: text}
""",
    "run.toml": """
[system]
device = "cpu"
[training]
batch_size = 4
learning_rate = 1e-3
betas = [0.9, 0.99]
[data]
paths = ["http://x//y", "b,}"]
source = "text"
""",
}


@pytest.mark.parametrize("name", sorted(FILES))
def test_all_file_kinds_say_the_same(name: str, tmp_path: Path) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_text(FILES[name])
    loaded = load_config(None, path, [])
    training = loaded.config.training
    assert (training.batch_size, training.learning_rate, training.betas) == (4, 1e-3, (0.9, 0.99))
    assert loaded.config.data.paths == ("http://x//y", "b,}")
    line = next(n for n, text in enumerate(FILES[name].splitlines(), 1) if "batch_size" in text)
    assert loaded.origin["training.batch_size"] == f"{path}:{line}"


def test_override_beats_file_and_file_beats_preset(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"training": {"batch_size": 3, "max_steps": 7}}')
    loaded = load_config("debug", path, ["training.batch_size=2"])
    assert (loaded.config.training.batch_size, loaded.config.training.max_steps) == (2, 7)
    assert loaded.config.model.layers == 2
    assert loaded.origin["training.batch_size"] == "--override"
    assert loaded.origin["training.max_steps"] == f"{path}:1"


def test_overrides_of_every_type() -> None:
    config = load_config(
        None,
        None,
        [
            "training.use_amp=false",
            "model.kv_heads=null",
            "training.learning_rate=1e-4",
            "training.max_steps=1e3",
            "data.paths=a.txt,b.txt",
            "data.source=text",
            "training.betas=[0.8, 0.9]",
            "logging.progress_bar=on",
            "data.name=a=b",
        ],
    ).config
    assert config.training.use_amp is False
    assert config.model.kv_heads is None
    assert (config.training.learning_rate, config.training.max_steps) == (1e-4, 1000)
    assert config.data.paths == ("a.txt", "b.txt")
    assert config.training.betas == (0.8, 0.9)
    assert (config.logging.progress_bar, config.data.name) == ("on", "a=b")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.batchsize=4", "there is no 'training.batchsize'; did you mean 'training.batch_size'?"),
        ("training.grad_accum=4", "did you mean 'training.grad_accum_nums'?"),
        ("training.n_embd=4", "did you mean 'model.width'?"),
        ("trainig.batch_size=4", "did you mean 'training.batch_size'?"),
        ("nonsense.zzzqqq=4", "sections are checkpoint, data, "),
        ("training.batch_size=many", 'training.batch_size must be a whole number, not "many"'),
        ("training.batch_size=1.5", "must be a whole number"),
        ("training.batch_size=null", "must be a whole number, not"),
        ("training.use_amp=maybe", "must be true or false"),
        ("training.learning_rate=nan", "must be a number"),
        ("system.strategy=fdsp", "did you mean 'fsdp'?"),
        ("training.betas=0.9", "a list of 2 numbers"),
        ("training.batch_size=0", "training.batch_size must be greater than 0"),
        ("batch_size", "write section.name=value"),
        ("model.heads=5", "--override: model.heads must divide model.width (768)"),
        ("data.source=text", "--override: data.paths is empty"),
    ],
)
def test_a_wrong_override_is_refused(override: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_config(None, None, [override])
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.json", '{\n "training": {\n  "batch_sice": 4\n }\n}', "a.json:3: there is no 'training.batch_sice'"),
        ("a.json", '{\n "training": {\n  "batch_size": "4x"\n }\n}', "a.json:3: training.batch_size must be"),
        ("a.json", '{\n "training": 4\n}', "a.json:2: 'training' is a section"),
        ("a.json", '{\n "training": {"batch_size" 4}\n}', "a.json:2: not JSON: expected a colon"),
        ("a.json", '{\n "training": {"batch_size": 4}', "a.json:2: not JSON"),
        ("a.json", "[1]", "a.json:1: not JSON: a configuration is an object"),
        ("a.json", '{"model": {"width": 8}, "model": {"width": 9}}', "'model.width' is given twice, first in line 1"),
        ("a.yaml", "training:\n  batch_sice: 4\n", "a.yaml:2: there is no 'training.batch_sice'"),
        ("a.yaml", "training:\n  batch_size: [\n", "a.yaml:3: not YAML"),
        ("a.yaml", "- 1\n", "a.yaml:1: a configuration is sections"),
        ("a.yaml", "model:\n  width: 100\n  heads: 7\n", "a.yaml:3: model.heads must divide model.width (100)"),
        ("a.toml", "[training]\nbatch_sice = 4\n", "a.toml:2: there is no 'training.batch_sice'"),
        ("a.toml", "[training]\nbatch_size = \n", "a.toml:2: not TOML"),
        ("a.toml", "training = {batch_sice = 4}\n", "a.toml:1: there is no 'training.batch_sice'"),
        ("a.ini", "", "ends in .json, .yaml, .yml or .toml"),
    ],
)
def test_a_mistake_in_a_file_is_refused_with_its_line(tmp_path: Path, name: str, text: str, expected: str) -> None:
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load_config(None, path, [])
    assert expected in str(refused.value)


def test_a_missing_file_and_an_unknown_preset_are_refused() -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_config(None, Path("none.json"), [])
    with pytest.raises(UsageError, match="did you mean 'debug'"):
        load_config("debgu", None, [])


def test_what_is_shown_gives_the_same_configuration_again(tmp_path: Path) -> None:
    loaded = load_config("mtp-3b", None, ["data.paths=a.txt", "data.source=text"])
    shown = render_config(loaded)
    assert '"source": "text",' in shown
    assert "// --override" in shown
    assert "// preset mtp-3b" in shown
    path = tmp_path / "again.json"
    path.write_text(shown)
    assert load_config(None, path, []).config == loaded.config


def test_every_field_says_what_it_means() -> None:
    import ast
    import inspect

    from rankscope.train import config

    sections = {field.name: field.default_factory for field in dataclasses.fields(RunConfig)}
    for node in ast.parse(inspect.getsource(config)).body:
        if isinstance(node, ast.ClassDef) and any(
            getattr(each, "__name__", "") == node.name for each in sections.values()
        ):
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign):
                    assert isinstance(after, ast.Expr), f"{node.name}.{ast.unparse(field.target)} is not explained"


def test_the_verb_shows_the_configuration_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--debug", "--show-config"]) == 0
    assert '"layers": 2,' in capsys.readouterr().out
