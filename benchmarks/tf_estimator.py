"""tf.estimator in a process of its own, with TensorFlow 2.15, which takes turns."""

import pathlib
import subprocess


class TfEstimator:
    """A script beside this file, which does steps when it is asked.

    Each line on the script's standard input is a number of steps; it writes a line
    when it is ready, and whenever they are done.
    """

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        """Starts it, and waits until it is ready.

        Args:
          python: interpreter that has TensorFlow 2.15.
          script: name of the script.
          *arguments: its arguments.
        """
        path = pathlib.Path(__file__).with_name(script)
        self._process = subprocess.Popen(
            [python, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._wait()

    def __call__(self, num_steps: int) -> None:
        """Does a number of steps."""
        print(num_steps, file=self._process.stdin, flush=True)
        self._wait()

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()

    def _wait(self) -> None:
        if self._process.stdout.readline() != "done\n":
            code = self._process.wait()
            raise SystemExit(
                f"--estimator_python: {self._process.args[0]} ended with {code}: give "
                "one that has tensorflow-cpu==2.15.1."
            )
