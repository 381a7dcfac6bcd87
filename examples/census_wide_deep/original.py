"""Wide & deep on a table like a census, by tf.estimator 2.15 and feature columns.

python original.py --data=census --model_dir=/tmp/census
"""

import argparse
import json

import tensorflow as tf

fc = tf.feature_column

EDUCATIONS = ["1-school", "2-some-college", "3-bachelors", "4-doctorate"]
WORKCLASSES = ["government", "other", "private", "self-employed"]
AGES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
BATCH_SIZE = 100


def make_columns():
    age = fc.numeric_column("age")
    hours = fc.numeric_column("hours", normalizer_fn=lambda x: (x - 40.0) / 10.0)
    ages = fc.bucketized_column(age, AGES)
    education = fc.categorical_column_with_vocabulary_list("education", EDUCATIONS)
    workclass = fc.categorical_column_with_vocabulary_list("workclass", WORKCLASSES)
    occupation = fc.categorical_column_with_hash_bucket("occupation", 100)
    pair = fc.crossed_column(["education", "occupation"], 1000)

    wide = [ages, education, workclass, occupation, pair]
    deep = [
        hours,
        fc.indicator_column(ages),
        fc.indicator_column(education),
        fc.indicator_column(workclass),
        fc.embedding_column(occupation, 8),
    ]
    return wide, deep


def input_fn(file, seed, training):
    dataset = tf.data.experimental.make_csv_dataset(
        file,
        BATCH_SIZE,
        column_defaults=[0.0, 0.0, "", "", "", 0],
        label_name="income",
        num_epochs=None if training else 1,
        shuffle=training,
        shuffle_seed=seed,
    )
    return dataset


def train(folder, model_dir, seed=1, steps=1000):
    wide, deep = make_columns()
    estimator = tf.estimator.DNNLinearCombinedClassifier(
        model_dir=model_dir,
        linear_feature_columns=wide,
        linear_optimizer=tf.keras.optimizers.legacy.Ftrl(0.05),
        dnn_feature_columns=deep,
        dnn_optimizer=tf.keras.optimizers.legacy.Adagrad(0.05),
        dnn_hidden_units=[64, 32],
        config=tf.estimator.RunConfig(tf_random_seed=seed),
    )
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(
            lambda: input_fn(f"{folder}/train.csv", seed, True), max_steps=steps
        ),
        tf.estimator.EvalSpec(lambda: input_fn(f"{folder}/test.csv", seed, False), steps=None),
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
    main()
