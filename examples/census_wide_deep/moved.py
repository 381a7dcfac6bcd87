"""Wide & deep on a table like a census: original.py on gin_estimator.

python -m examples.census_wide_deep.moved --data=census --model_dir=/tmp/census
"""

import argparse
import functools
import json

import keras

import gin_estimator as ge
from gin_estimator import inputs, models

EDUCATIONS = ["1-school", "2-some-college", "3-bachelors", "4-doctorate"]
WORKCLASSES = ["government", "other", "private", "self-employed"]
AGES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
BATCH_SIZE = 100


def make_schema(source):
    word = {"kind": "word", "embedding": "one_hot"}
    return inputs.Schema(
        features={
            "age": {
                "kind": "number",
                "buckets": AGES,
                "embedding": "one_hot",
            },
            "hours": {"kind": "number", "scale": "standard", "wide": False},
            "education": {**word, "vocabulary": EDUCATIONS},
            "workclass": {**word, "vocabulary": WORKCLASSES},
            "occupation": {"kind": "word", "hash_buckets": 100, "embedding": 8},
            "pair": {
                "kind": "cross",
                "of": ["education", "occupation"],
                "hash_buckets": 1000,
            },
        },
        other_columns={"income": "id"},
        source=source,
    )


def train(folder, model_dir, seed=1, steps=1000):
    read = functools.partial(
        inputs.csv_input_fn,
        label="income",
        train_files=f"{folder}/train.csv",
        eval_files=f"{folder}/test.csv",
    )
    schema = make_schema(source=read)
    estimator = ge.Estimator(
        functools.partial(models.table_model, head=models.BinaryClassHead()),
        modules={
            "network": functools.partial(models.wide_and_deep, schema, hidden=(64, 32)),
            "wide_optimizer": lambda: keras.optimizers.Ftrl(0.05),
            "optimizer": lambda: keras.optimizers.Adagrad(0.05),
        },
        config=ge.RunConfig(model_dir=model_dir, tf_random_seed=seed),
    )
    input_fn = functools.partial(read, columns=schema, batch_size=BATCH_SIZE, seed=seed)
    metrics, _ = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(input_fn, max_steps=steps),
        ge.EvalSpec(input_fn, steps=None),
    )
    return metrics


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    metrics = train(args.data, args.model_dir, args.seed)
    shown = ("accuracy", "auc", "loss", "global_step")
    print(json.dumps({name: float(metrics[name]) for name in shown}))


if __name__ == "__main__":
    ge.run(main)
