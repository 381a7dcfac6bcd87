"""How many steps a call runs."""

from gin_estimator.train.compiled_loop import Steps
from gin_estimator.train.steps_per_call import StepsPerCall


def calls(pace, number, secs_per_step):
    """Returns the numbers of steps of some calls."""
    found = []
    for _ in range(number):
        steps = pace.num_steps
        found.append(steps)
        pace.record(Steps(0, steps, steps * secs_per_step, None, 0, False))
    return found


def test_calls_double_up_to_their_time_and_to_a_thousand_steps():
    assert calls(StepsPerCall(1000, 3.0), 6, 0.25) == [1, 2, 4, 8, 12, 12]
    assert calls(StepsPerCall(5, 3.0), 4, 1e-6) == [1, 2, 4, 5]
    pace = StepsPerCall(10**6, 3.0)
    assert calls(pace, 12, 1e-6)[-2:] == [1000, 1000]  # No float32 sum spans more.
    assert calls(pace, 3, 2.0) == [1000, 1, 1]
