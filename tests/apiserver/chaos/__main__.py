"""`python -m tests.apiserver.chaos --minutes 30 --seed 7`: random faults for a while; ends with 1 on a broken rule."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.apiserver.chaos.run import Chaos


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="of faults; about two more to start and settle")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--directory", type=Path, help="for logs and etcd's data; a new one if left out")
    given = parser.parse_args()
    directory = given.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {given.seed}, logs in {directory}", flush=True)
    try:
        Chaos(directory, given.seed, lambda text: print(text, flush=True)).run(given.minutes * 60)
    except AssertionError as error:
        print(f"FAILED (seed {given.seed}): {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
