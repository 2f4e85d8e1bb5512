"""A tiny model folder with random weights and a real tokenizer, made in a second: `tiny_llama(folder)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
CONTEXT_TOKENS = 512
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "The answer is yes. The answer is no. A positive review, a negative review, a neutral one: naïve café, 1998.",
    "Summarize the text in one sentence. The senate met, the house met, and the people of the states were told.",
)


def tiny_llama(folder: Path, *, seed: int = 7) -> Path:
    """Makes `folder` a complete model; equal seeds give equal weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": tokenizer.get_vocab_size(),
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": False,
        "eos_token_id": EOS,
        "bos_token_id": 1,
    }
    mx.save_safetensors(str(folder / "model.safetensors"), random_weights(config, seed), {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, 0]}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[EOS], "pad_token": SPECIAL[0]})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def random_weights(config: dict[str, object], seed: int) -> dict[str, mx.array]:
    """Weights so large that logits leave no near ties, and greedy tokens vary."""
    model = Model(ModelArgs.from_dict(config))
    keys = iter(mx.random.split(mx.random.key(seed), 64))
    drawn = tree_map(
        lambda weight: weight if weight.ndim == 1 else mx.random.normal(weight.shape, key=next(keys)) * 0.25,
        model.parameters(),
    )
    return dict(tree_flatten(drawn))


def chained(folder: Path, *chains: Sequence[str], added: Sequence[str] = (), template: str = TEMPLATE) -> Path:
    """A model that follows chains of tokens: the greedy token after one is the next in its chain.

    `added` become tokens of the tokenizer first.
    """
    tiny_llama(folder)
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": tokenizer.get_vocab_size()}
    weights = random_weights(config, seed=7)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):  # layers add nothing: a token is all that is known
            weights[name] = mx.zeros_like(weights[name])
    head = mx.zeros_like(weights["lm_head.weight"])
    for chain in chains:
        ids = [tokenizer.token_to_id(token) for token in chain]
        for this, following in pairwise(ids):
            head[following] += weights["model.embed_tokens.weight"][this]
    weights["lm_head.weight"] = head * 4
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE: any text has tokens, and some words are one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer
