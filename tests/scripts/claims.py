"""Processes that claim model_dirs, for `tests/pipeline/claim_test.py`.

claims.py hold MODEL_DIR            says "held" and holds it until it is killed
claims.py race FOLDER ROUNDS        says "ready", reads when to begin, and claims
                                    FOLDER/0, FOLDER/1, ... at the same times as others
                                    do; says which it got
"""

import contextlib
import json
import sys
import time

from pipeline.model_dir import claim


def say(what):
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def hold(model_dir):
    with claim.held(model_dir):
        say("held")
        time.sleep(600)


def race(folder, rounds):
    won = []
    say("ready")
    start = float(sys.stdin.readline())
    with contextlib.ExitStack() as stack:
        for number in range(int(rounds)):
            while time.time() < start + number * 0.03:
                pass
            try:
                stack.enter_context(claim.held(f"{folder}/{number}"))
                won.append(number)
            except claim.ClaimedError:
                pass
        say(json.dumps(won))
        # The other one has looked at all of them by then.
        sys.stdin.readline()


if __name__ == "__main__":
    {"hold": hold, "race": race}[sys.argv[1]](*sys.argv[2:])
