"""A corpus of short texts for the demo of embed: what operations of cloud services do, from the `botocore` package.

The package's files are read where they lie and none of its code runs. Equal files give equal bytes.
"""

from __future__ import annotations

import filecmp
import gzip
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

from fleet.errors import UsageError

#: About 1,800 operations, of services that many people know.
SERVICES = (
    *("s3", "dynamodb", "lambda", "sqs", "sns", "iam", "sts", "kms", "route53", "cloudwatch", "logs", "ecs", "ecr"),
    *("rds", "secretsmanager", "ssm", "events", "stepfunctions", "athena", "glue"),
)
#: Words of a description that are taken.
MOST_WORDS = 60
_FILE = "service-2.json.gz"
_TAG = re.compile(r"<[^>]*>")
#: Where a new word begins in an operation's name: `DeleteDBCluster` is `Delete DB Cluster`.
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def write_texts(package: Path, path: Path) -> int:
    """Writes a text for each operation as JSONL; how many there are. An equal file is left as it is."""
    texts = [text for service in SERVICES for text in read_service(package / "data" / service)]
    if not texts:
        raise UsageError(f"no descriptions of services in {package}: install the package botocore again")
    draft = path.with_suffix(".tmp")
    with draft.open("w", encoding="utf-8", newline="\n") as stream:
        for name, text in texts:
            stream.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")
    if path.is_file() and filecmp.cmp(draft, path, shallow=False):
        draft.unlink()
    else:
        draft.replace(path)
    return len(texts)


def read_service(folder: Path) -> Iterator[tuple[str, str]]:
    """(`service.Operation`, what it does) of the newest description in `folder`; none where there is no folder."""
    files = sorted(folder.glob(f"*/{_FILE}"))
    if not files:
        return
    model = json.loads(gzip.decompress(files[-1].read_bytes()))
    service = model["metadata"].get("serviceId", folder.name)
    for name, operation in model["operations"].items():
        words = html.unescape(_TAG.sub(" ", operation.get("documentation", ""))).split()
        if words:
            yield f"{folder.name}.{name}", f"{service} {_WORD.sub(' ', name)}: {' '.join(words[:MOST_WORDS])}"
