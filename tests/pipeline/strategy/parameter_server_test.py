"""A cluster of a chief, two workers and two parameter servers, in real processes.

The chief runs `tests/scripts/parameter_servers.py`, act after act, since a process
connects to one cluster; the tests look at what it wrote.
"""

import json
import signal
import time

import pytest

import pipeline as ge
from pipeline.cluster.tf_config import Cluster
from pipeline.strategy import parameter_server, strategies
from tests import clusters, fakes, kinds, patience, row_tables, tabled_training

LIMIT_SECS = 240


@pytest.fixture(scope="module")
def ran(tmp_path_factory, worker_id):
    """What came of each act, and the tasks' exit codes; run once, also under xdist."""
    base = tmp_path_factory.getbasetemp()
    out = (base if worker_id == "master" else base.parent) / "parameter_servers"
    try:
        out.mkdir()
    except FileExistsError:
        is_over = patience.deadline(LIMIT_SECS)
        while not (out / "codes.json").exists() and not is_over():
            time.sleep(0.5)
    else:
        clusters.run_forked("parameter_servers", [str(out)], LIMIT_SECS)
    acts = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert "codes" in acts, (out / "chief_0.log").read_text()[-3000:]
    return acts


def test_steps_examples_and_updates_are_counted_exactly(ran):
    counts = ran["counts"]
    assert counts["steps"] == [50, 100, 150]
    assert [window["examples"] for window in counts["windows"]] == [50 * 16] * 3
    # Each step number is seen by model_fn once.
    seen = sum(window["steps"] for window in counts["windows"])
    assert seen == sum(range(150))
    assert counts["global_step"] == 200
    assert counts["updates"] == [200, 100]


def test_workers_take_back_nothing_of_what_others_drew(ran):
    # Two forward passes in every second step.
    assert ran["counts"]["drawn"][1] == 200 + 100


def test_the_loss_falls_and_a_run_resumes(ran):
    counts = ran["counts"]
    losses = [window["loss"] for window in counts["windows"]]
    assert losses[-1] < 0.8 * losses[0]
    assert counts["resumed"] == [200]
    assert counts["resumed_examples"] == [50 * 16]


def test_a_rate_that_is_configured_otherwise_on_resuming_is_taken(ran):
    assert ran["counts"]["rates"] == pytest.approx([0.01, 0.005])


def test_the_chief_evaluates_every_example_once(ran):
    evaluated = ran["counts"]["evaluated"]
    assert evaluated["examples"] == 960
    assert evaluated["ids"] == sum(range(960))
    assert evaluated["distinct"] == 960
    assert evaluated["global_step"] == 200
    assert evaluated["accuracy"] > 0.8


def test_summaries_are_of_one_workers_step_and_of_a_whole_evaluation(ran):
    trained = ran["counts"]["trained_shown"]
    assert trained["values"] == {str(step): 16 for step in range(30, 151, 30)}
    assert {len(texts) for texts in trained["texts"].values()} == {4}
    evaluated = ran["counts"]["evaluated_shown"]
    assert evaluated["values"] == {"200": 960}
    assert evaluated["largest"] == {"200": [[[[239]]]] * 4}


def test_a_hook_is_given_tensors_of_one_workers_step(ran):
    for window in ran["counts"]["windows"]:
        assert len(set(window["read"])) == 16
        # Each worker reads each second row.
        assert len({number % 2 for number in window["read"]}) == 1


def test_norms_are_of_one_workers_step(ran):
    norms = ran["counts"]["norms"]
    assert {len(each) for each in norms.values()} == {5}
    assert max(norms["clipped_gradient_norm/network"]) <= 5.0
    assert min(norms["update_norm/network"]) > 0
    assert len(norms["gradient_norm/head"]) == 5
    table = ran["embedding"]["norms"]
    assert min(table["gradient_norm/table"] + table["update_norm/table"]) > 0


def test_a_worker_that_is_killed_costs_no_count(ran):
    assert ran["codes"]["restarted"] == 2
    assert ran["worker_dies"] == {
        "examples": 300 * 16,
        "global_step": 300,
        "updates": [300, 150],
    }


def test_unequal_parts_of_finite_data_are_used_to_the_end(ran):
    # Of each worker, so that the one that was started again takes part.
    unequal = ran["unequal"]
    assert unequal["values"]["examples"] == 960
    assert unequal["values"]["ids"] == sum(range(960))
    assert unequal["global_step"] == 32 + 29
    assert unequal["updates"][0] == 32 + 29


def test_a_worker_that_is_replaced_goes_on_in_its_data(ran):
    # In a resumed run, called for what was left: nothing is lost or counted twice.
    first, second = ran["replaced"]["parts"]
    assert first["examples"] == 10 * 16
    assert first["examples"] + second["examples"] == 960
    assert first["ids"] + second["ids"] == sum(range(960))
    assert ran["replaced"]["global_step"] == 32 + 29
    assert ran["replaced"]["updates"][0] == 32 + 29


def test_a_resumed_run_goes_on_in_the_data(ran):
    """Of an input_fn without context, whose data are dealt out."""
    first, second, again = ran["resumed"]["parts"]
    assert first["examples"] + second["examples"] == 960
    # Shuffled alike, as there is a seed.
    assert first["ids"] + second["ids"] == sum(range(960))
    # They had ended: another pass.
    assert (again["examples"], again["ids"]) == (960, sum(range(960)))
    assert ran["resumed"]["global_step"] == 120


def test_a_sharded_table_trains_and_is_saved_whole(ran):
    embedding = ran["embedding"]
    (first_cut, second_cut), (first_whole, second_whole) = (
        embedding["accuracy"]["cut"],
        embedding["accuracy"]["whole"],
    )
    # Each goes on from the one before.
    assert first_cut > 0.9
    assert min(first_whole, second_cut, second_whole) > first_cut - 0.02
    assert embedding["step"] == 340
    assert set(embedding["parts"]) == {2, 1}
    slots = ("momentum", "velocity")
    table = "table/embedding/embeddings"
    names = [table, *(f"optimizer/{slot}/{table}" for slot in slots)]
    assert [embedding["shapes"][name] for name in names] == [[200, 4]] * 3


def test_an_average_lies_on_the_servers_and_moves_at_stops(ran):
    """Also of the table cut in two; it goes on in one process, and back."""
    averages = ran["embedding"]["averages"]
    assert [each["steps"] for each in averages] == [150, 170, 320, 340]
    # All of the first 150 steps count with the weights at their only stop.
    assert averages[0]["distance"] == 0
    assert averages[0]["accuracy"] == ran["embedding"]["accuracy"]["cut"][0]
    assert min(each["distance"] for each in averages[1:]) > 1e-3
    assert min(each["accuracy"] for each in averages) > 0.9


def test_no_row_leaps_where_two_workers_update_it(ran):
    """By another worker's momentum, divided by a velocity that is not there yet."""
    # A step of Adam(0.01) is of 0.01, and more in the first ones; 340 are taken.
    assert max(each["largest"] for each in ran["embedding"]["averages"]) < 3


def test_a_parameter_server_that_is_killed_is_named(ran):
    assert "ps 1" in ran["server_dies"]["error"]
    codes = ran["codes"]["codes"]
    assert (codes["chief 0"], codes["ps 1"]) == (75, -signal.SIGKILL)


def test_workers_and_servers_end_with_the_chief(ran):
    codes = ran["codes"]["codes"]
    assert [codes[task] for task in ("worker 0", "worker 1", "ps 0")] == [0, 0, 0]
    assert ran["codes"]["secs_after_chief"] < 20


def config(jobs, **options):
    cluster = Cluster(jobs=jobs, **options.pop("task", {}))
    return ge.RunConfig(cluster=cluster, **options)


JOBS = {"chief": ("a:1",), "worker": ("b:1",), "ps": ("c:1",)}


def test_evaluations_lower_the_rate_and_end_the_training(ran):
    assert ran["steered"] == {
        "steps": [20, 40, 60, 80],
        "rates": [0.125, 0.125, 0.0625, 0.03125],
    }


@pytest.mark.parametrize(
    ("case", "step", "saved"),
    [
        ("epochs+plateau+keep_best", 12, [6, 8, 10, 12]),
        ("examples+plain", 8, [6, 8]),
        ("seconds+every_steps", 9, [8, 9]),
        ("restore_best+exponential+keep_steps", 7, [3, 7]),
        ("asked+exponential+keep_best", 6, [2, 4, 6]),
    ],
)
def test_steered_killed_and_resumed_is_not_killed(ran, case, step, saved):
    """With and without an evaluator job; see `steering_conformance_test`."""
    whole, killed = ran["killed"][case]
    assert killed == whole
    assert (whole["end"][0], whole["saved"]) == (step, saved)


def test_a_cluster_without_servers_is_refused():
    with pytest.raises(ValueError, match="names no 'ps'"):
        parameter_server.parameter_server(
            config({"chief": ("a:1",), "worker": ("b:1",)})
        )


def test_a_chief_with_nothing_to_train_lets_the_others_go(tmp_path, monkeypatch):
    """They wait for its port, which opens as it connects to them."""
    x, y = fakes.classification_data(32)
    input_fn = fakes.make_input_fn(x, y, batch_size=16)
    fakes.make_estimator(tmp_path).train(input_fn, max_steps=2)
    connected = []
    monkeypatch.setattr(strategies, "create", connected.append)
    chief = fakes.make_estimator(
        tmp_path,
        execution="parameter_server",
        cluster=Cluster(task_type="chief", jobs=JOBS),
    )
    chief.train(input_fn, max_steps=2)
    assert connected == [chief.config]


def test_a_worker_has_no_strategy():
    task = {"task_type": "worker", "task_id": 0}
    with pytest.raises(ValueError, match="serves the chief"):
        parameter_server.parameter_server(config(JOBS, task=task))


def test_the_chiefs_port_is_looked_at_before_it_waits_for_others():
    taken, address = fakes.listening()
    task = {"task_type": "chief", "task_id": 0}
    with taken, pytest.raises(ValueError, match=f"{address}, and port .* is in use"):
        parameter_server.parameter_server(
            config({**JOBS, "chief": (address,)}, task=task)
        )


@pytest.mark.parametrize(
    "options, instead",
    [
        ({"precision": "mixed_float16"}, "precision='mixed_bfloat16'"),
        ({"jit_compile": True}, "jit_compile=False"),
        ({"run_eagerly": True}, "execution='single_host'"),
    ],
)
def test_what_workers_cannot_do_is_refused(options, instead):
    task = {"task_type": "chief", "task_id": 0}
    with pytest.raises(ValueError, match=instead):
        parameter_server.parameter_server(config(JOBS, task=task, **options))


def test_rows_of_shards_move_as_whole_tables_do(ran):
    row_tables.check(ran["rows"])


def test_networks_of_tables_come_to_what_they_do_in_one_process(ran):
    tabled_training.check(ran["tables"])


def test_a_transformer_and_dp_sgd_come_to_what_they_do_in_one_process(ran):
    kinds.check(ran["transformer"])
