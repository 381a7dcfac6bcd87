"""Trains 60 steps of 0.1 seconds, and evaluates each 10: `history.py MODEL_DIR`. Prints STEP n."""

import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import gin_estimator as ge
from small import Do, data, make, train_input


def slow(run):
    time.sleep(0.1)
    print("STEP", run.step, flush=True)


def main():
    one = make(sys.argv[1], save_checkpoints_steps=10, max_loop_secs=0.1)
    ge.train_and_evaluate(one, ge.TrainSpec(train_input, 60, [Do(slow)]), ge.EvalSpec(data))


if __name__ == "__main__":
    ge.run(main)
