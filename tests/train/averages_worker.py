"""Trains with an average and summaries as a worker or alone: `averages_worker.py DIR RESULT`."""

import os
import sys

import keras
import numpy as np

import gin_estimator as ge

strategy = ge.multi_worker() if "TF_CONFIG" in os.environ else None

from averages_test import STEPS, averaged, by_step  # noqa: E402
from small import eval_input, make, train_input  # noqa: E402

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "hooks"))
import summaries_test  # noqa: E402

if __name__ == "__main__":
    folder, result = sys.argv[1:]

    def network():
        keras.utils.set_random_seed(1)
        return keras.layers.Dense(3)

    one = averaged(f"{folder}/average", network=network, train_distribute=strategy)
    one.train(train_input, max_steps=STEPS)
    metrics = one.evaluate(eval_input)
    one.state.replicas.barrier()
    values = by_step(f"{folder}/average", "driver/ema/network/")
    found = [np.ravel(each) for each in values.values()]
    np.save(result, np.concatenate([*found, [metrics["loss"], metrics["ema/loss"]]]))
    one = make(
        f"{folder}/summaries",
        fn=summaries_test.model_fn,
        network=summaries_test.network,
        save_summary_steps=2,
        train_distribute=strategy,
    )
    spec = ge.TrainSpec(summaries_test.input_fn, 3)
    ge.train_and_evaluate(one, spec, ge.EvalSpec(summaries_test.input_fn))
