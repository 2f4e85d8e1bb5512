"""A sentence-transformers folder with all that intake reads: a WordPiece tokenizer, and weights of one byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

#: Tokens of a text at most, [CLS] and [SEP] included.
MAX_SEQ_TOKENS = 32
DIMENSION = 8
CLS, SEP = 1, 2
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:!?\u00e9"


def bare_embedder(folder: Path, *, config: dict[str, Any] | None = None, prompts: dict[str, str] | None = None) -> Path:
    """Makes `folder`: a token for each letter, as BERT has them, and a file that asks for cutting and padding."""
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    about = {"model_type": "bert", "hidden_size": DIMENSION, "max_position_embeddings": 64, **(config or {})}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "model.safetensors").write_bytes(b"\0")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_SEQ_TOKENS}))
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = {"word_embedding_dimension": DIMENSION, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if prompts:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    tokenizer = letters()
    tokenizer.enable_truncation(max_length=16)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def letters() -> Tokenizer:
    """Words of BERT's kind, all of whose pieces are letters."""
    pieces = [*_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", CLS), ("[SEP]", SEP)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    return tokenizer
