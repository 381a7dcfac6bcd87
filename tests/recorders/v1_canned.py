"""Records evaluations of canned estimators for tests/v1/canned_test.py.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    VENV/bin/python tests/recorders/v1_canned.py tests/v1/canned.json

Linear and baseline models begin with zeros, so that no initial values are recorded.
"""

import json
import pathlib
import sys

import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "v1"))
import canned_cases as cases  # noqa: E402

found = {}
for name in cases.CASES:
    for version, module in {"v1": tf.compat.v1.estimator, "v2": tf.estimator}.items():
        try:
            evaluated = cases.evaluated(tf, module, name)
        except tf.errors.FailedPreconditionError as error:  # Both baselines of version 2.
            print(f"{name}_{version}: {error}", file=sys.stderr)
            continue
        found[f"{name}_{version}"] = {key: float(value) for key, value in evaluated.items()}
pathlib.Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
