"""Finds the vectors of an output of `fleet run embed` that are nearest to a query: exactly, by cosine.

  fleet search vectors.parquet "how are rows kept after a crash"
  fleet search vectors.npy "delete a bucket" -k 3 --json

The query is embedded by the model that made the vectors, with its prompt for queries where it has one. A model that is
another, or was changed since, is an error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from fleet.errors import Exit, ModelError, UsageError
from fleet.flags import folder, place, positive

#: Neighbours told unless asked otherwise.
COUNT = 10
#: Of a field's value, this much is shown to a person.
SHOWN_CHARS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet search`."""
    parser.add_argument("vectors", type=place, metavar="OUT", help=".parquet or .npy of `fleet run embed`")
    parser.add_argument("query", metavar="QUERY", help="a text, in quotes")
    parser.add_argument("-k", type=positive, default=COUNT, metavar="N", help=f"neighbours to tell ({COUNT})")
    parser.add_argument("-m", "--model", type=place, help="the model that made the vectors, where it was moved to")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="where hashes of models are remembered")
    parser.add_argument("--json", action="store_true", help="as a JSON list")


def main(args: argparse.Namespace) -> int:
    """Prints the neighbours, nearest first."""
    found = search(args)
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        for neighbour in found:
            print(line(neighbour))
    return int(Exit.OK)


def search(args: argparse.Namespace) -> list[dict[str, Any]]:
    """`{score, id, ...what the output says of it}` of each neighbour."""
    from coordinator.outputs.query_vector import embed_query
    from coordinator.outputs.vector_search import nearest, open_vectors
    from fleet.config import StateDir
    from fleet.model import find_model

    if not args.query or args.query.isspace():
        raise UsageError("the query is empty: give a text, in quotes")
    vectors = open_vectors(args.vectors)
    if not vectors.origin.rows:
        return []
    try:
        model = find_model(args.model or vectors.origin.model)
    except ModelError as error:
        raise ModelError(f"the model of these vectors is not found: {error}; -m says where it is now") from error
    known = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    near = nearest(vectors.blocks(), embed_query(args.query, model, vectors.origin, known), args.k)
    about = vectors.about([row for _, row in near])
    return [{"score": round(score, 6), **fields} for (score, _), fields in zip(near, about, strict=True)]


def line(neighbour: Mapping[str, Any]) -> str:
    """A neighbour for a person."""
    shown = dict(neighbour)
    score, name = shown.pop("score"), shown.pop("id")
    where = f"[{shown.pop('start')}:{shown.pop('end')}]" if "start" in shown else ""
    rest = {field: value for field, value in shown.items() if field not in ("tokens", "truncated", "chunk")}
    told = "  ".join(f"{field}={_short(value)}" for field, value in rest.items())
    return f"{score:.4f}  {name}{where}  {told}".rstrip()


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
