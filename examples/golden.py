"""Runs the original of an example on TensorFlow 2.15.1 and records its metrics.

    python3.11 -m venv old && old/bin/pip install tensorflow-cpu==2.15.1
    python -m examples.golden mnist_mirrored --python=old/bin/python
    python -m examples.golden gan --python=old/bin/python --seeds=12

The numbers of each seed are written to golden.json in the folder of the example.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

from examples import data

EXAMPLES = {
    "bert_tuning": "topics.npz",
    "census_wide_deep": "census",
    "gan": "ring.npz",
    "mnist_mirrored": "digits.npz",
    "tpu_mnist": "digits.npz",
}

_VERSIONS = """
import json, platform
import numpy, tensorflow
print(json.dumps({
    "python": platform.python_version(),
    "numpy": numpy.__version__,
    "tensorflow": tensorflow.__version__,
}))
"""


def last_line(command: list[str]) -> dict:
    """Runs a command and returns the JSON object in its last line."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def record(example: str, python: str, seeds: int) -> dict:
    """Runs the original of `example` once for each seed, after its `pretrain.py`, if any.

    Args:
      example: one of `EXAMPLES`.
      python: path of an interpreter with TensorFlow 2.15.1.
      seeds: number of seeds, which begin at 1.
    """
    original = pathlib.Path(__file__).parent / example / "original.py"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, EXAMPLES[example])
        data.WRITERS[file.stem](file)
        runs, before = {}, {}
        if (pretrain := original.with_name("pretrain.py")).exists():
            flags = [f"--data={file}", f"--model_dir={folder}/pretrained"]
            before = {"pretrained": last_line([python, str(pretrain), *flags])}
        for seed in range(1, seeds + 1):
            flags = [f"--data={file}", f"--model_dir={folder}/{seed}", f"--seed={seed}"]
            runs[str(seed)] = last_line([python, str(original), *flags])
    return {"versions": last_line([python, "-c", _VERSIONS]), "seeds": runs} | before


def main() -> None:
    """Reads the command line and writes golden.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", choices=sorted(EXAMPLES))
    parser.add_argument("--python", required=True, help="has TensorFlow 2.15.1")
    parser.add_argument("--seeds", type=int, default=6, help="how many")
    args = parser.parse_args()
    text = json.dumps(record(args.example, args.python, args.seeds), indent=2) + "\n"
    file = pathlib.Path(__file__).parent / args.example / "golden.json"
    file.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
