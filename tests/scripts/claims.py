"""Processes that claim model_dirs, for `tests/pipeline/claim_test.py`.

claims.py hold MODEL_DIR            says "held" and holds it until it is killed
claims.py race FOLDER ROUNDS        says "ready", reads in FOLDER/start when to begin,
                                    and claims FOLDER/0, FOLDER/1, ... at the same times
                                    as others do; says which it "won", and is killed
"""

import contextlib
import json
import os
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
    while not os.path.exists(f"{folder}/start"):
        time.sleep(0.01)
    with open(f"{folder}/start") as file:
        start = float(file.read())
    with contextlib.ExitStack() as stack:
        for number in range(int(rounds)):
            while time.time() < start + number * 0.03:
                pass
            try:
                stack.enter_context(claim.held(f"{folder}/{number}"))
                won.append(number)
            except claim.ClaimedError:
                pass
        say(f"won {json.dumps(won)}")
        # The other one has looked at all of them when this is killed.
        time.sleep(600)


if __name__ == "__main__":
    {"hold": hold, "race": race}[sys.argv[1]](*sys.argv[2:])
