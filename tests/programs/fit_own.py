"""Trains the GAN of own_steps_test.py: `fit_own.py MODEL_DIR EXECUTION`."""

import json
import pathlib
import sys

import gin_estimator as ge

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "fit"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import own_steps_test
from fit import Slow


def main():
    model_dir, execution = sys.argv[1:]
    make, data, _ = own_steps_test.PROGRAMS["gan"]
    config = ge.RunConfig(model_dir, execution=execution, save_checkpoints_steps=2)
    result = ge.fit(make, data, epochs=3, hooks=[Slow()], config=config)
    weights = [each.tolist() for each in result.model.get_weights()]
    for optimizer in (result.model.d_optimizer, result.model.g_optimizer):
        weights += [each.numpy().tolist() for each in optimizer.variables]
    print("RESULT", json.dumps({"history": result.history, "weights": weights}), flush=True)


if __name__ == "__main__":
    main()
