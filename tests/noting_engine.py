"""The fake engine, which also notes when it admits a row: `KEY SECONDS` lines in the file FAKE_ADMITTED.

The seconds are those of the system's one monotonic clock, so that notes of several engines compare.
"""

import os
import sys
import time
from pathlib import Path

from tests import fake_engine


class NotingEngine(fake_engine.FakeEngine):
    def admit(self) -> None:
        before = set(self.batch)
        super().admit()
        new = [row.key.hex() for id, (row, _, _) in self.batch.items() if id not in before]
        if new:
            with Path(os.environ["FAKE_ADMITTED"]).open("a") as notes:
                notes.writelines(f"{key} {time.monotonic()}\n" for key in new)


if __name__ == "__main__":
    fake_engine.FakeEngine = NotingEngine  # type: ignore[misc]
    sys.exit(fake_engine.main())
