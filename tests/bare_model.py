"""A model folder with all that intake reads: a small trained tokenizer, a chat template, and weights of one byte."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT_TOKENS = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "Name a colour. The answer is yes or no. A good word, a better word, the best word. Summarize the text.",
    "The senate met and the house met. Which of these labels fits best? The people of the states were told.",
)


def bare_model(folder: Path, *, context: int = CONTEXT_TOKENS, template: str | None = TEMPLATE) -> Path:
    """Makes `folder`; without a `template` the model has none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": context}))
    (folder / "model.safetensors").write_bytes(b"\0")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[2], "bos_token": SPECIAL[0]}))
    train_tokenizer().save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE: any text has tokens, and some words are one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer
