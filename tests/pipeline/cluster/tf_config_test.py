"""TF_CONFIG as tf.estimator read it, and what it refused."""

import dataclasses
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from pipeline import RunConfig
from pipeline.cluster import tf_config

FULL = {
    "chief": ["h0:1"],
    "worker": ["h1:1", "h2:1"],
    "ps": ["h3:1", "h4:1"],
}


def parse(jobs=None, task_type=None, index=None, **others):
    config = dict(others)
    if jobs is not None:
        config["cluster"] = jobs
    if task_type is not None:
        config["task"] = {"type": task_type, "index": index}
    return tf_config.parse_tf_config(json.dumps(config))


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " \n",
        "{}",
        '{"cluster": {}}',
        '{"cluster": {"ps": []}, "task": {}}',
        '{"task": {"type": "worker", "index": 0}, "environment": "cloud"}',
    ],
)
def test_no_cluster_is_a_local_run(text):
    local = tf_config.parse_tf_config(text)
    assert local == tf_config.Cluster()
    assert (local.task_type, local.task_id) == ("worker", 0)
    assert local.is_chief
    assert local.num_worker_replicas == 1
    assert local.num_ps_replicas == 0
    assert local.global_id_in_cluster == 0
    assert not local.has_evaluator
    assert not local.jobs


@pytest.mark.parametrize(
    ("task_type", "index", "global_id"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3), ("ps", 1, 4)],
)
def test_every_training_task_sees_the_same_cluster(task_type, index, global_id):
    parsed = parse(FULL, task_type, index)
    assert (parsed.task_type, parsed.task_id) == (task_type, index)
    assert parsed.global_id_in_cluster == global_id
    assert parsed.is_chief == (task_type == "chief")
    assert parsed.num_worker_replicas == 3
    assert parsed.num_ps_replicas == 2
    spec = RunConfig(cluster=parsed).cluster_spec
    assert spec.as_dict() == FULL


def test_without_a_chief_worker_0_is_chief():
    jobs = {"worker": ["h0:1", "h1:1"]}
    first, second = parse(jobs, "worker", 0), parse(jobs, "worker", 1)
    assert (first.is_chief, second.is_chief) == (True, False)
    assert (first.global_id_in_cluster, second.global_id_in_cluster) == (0, 1)
    assert first.num_worker_replicas == 2


@pytest.mark.parametrize(
    "jobs",
    [None, {}, FULL, {**FULL, "evaluator": ["h9:1"]}, {"evaluator": ["h9:1"]}],
)
def test_evaluator_is_no_part_of_the_training_cluster(jobs):
    parsed = parse(jobs, "evaluator", 0)
    assert (parsed.task_type, parsed.task_id) == ("evaluator", 0)
    assert not parsed.is_chief
    assert parsed.global_id_in_cluster is None
    assert (parsed.num_worker_replicas, parsed.num_ps_replicas) == (0, 0)
    assert not parsed.jobs
    assert parsed.has_evaluator


@pytest.mark.parametrize("task_type", ["chief", "worker", "ps"])
def test_a_listed_evaluator_is_known_of_and_changes_nothing_else(task_type):
    listed = parse({"evaluator": ["h9:1"], **FULL}, task_type, 0)
    unlisted = parse(FULL, task_type, 0)
    assert (listed.has_evaluator, unlisted.has_evaluator) == (True, False)
    assert listed == dataclasses.replace(unlisted, has_evaluator=True)
    assert not parse({"evaluator": [], **FULL}, task_type, 0).has_evaluator


def test_a_job_may_be_numbered():
    numbered = {"worker": {"1": "h2:1", "0": "h1:1"}, "chief": {"0": "h0:1"}}
    listed = {"worker": ["h1:1", "h2:1"], "chief": ["h0:1"]}
    assert parse(numbered, "worker", 1) == parse(listed, "worker", 1)


def test_str_is_for_logs():
    assert str(parse(FULL, "worker", 1)) == "worker 1 of chief: 1, worker: 2, ps: 2"
    assert str(tf_config.Cluster()) == "worker 0 of no cluster"


ONE = {"chief": ["h0:1"]}
TASK = {"type": "chief", "index": 0}
REFUSED = {
    "not_json": ("{'cluster': 1}", r"is .*'cluster.* is no JSON \(.*write it .*unset"),
    "not_an_object": ([1], r"is '\[1\]', which is no JSON object: write it like"),
    "model_dir": ({"model_dir": "/m"}, r'"model_dir" is \'/m\', .*--model_dir='),
    "cluster_not_an_object": (
        {"cluster": ["h0:1"], "task": TASK},
        r'"cluster" is \[\'h0:1\'\], which is no object .*: write "cluster":',
    ),
    "task_not_an_object": (
        {"cluster": ONE, "task": "chief"},
        r'"task" is \'chief\', which is no object: write "task":',
    ),
    "master": (
        {"cluster": {"master": ["h0:1"]}, "task": {"type": "master", "index": 0}},
        r'"cluster" has a job "master".*write "chief" instead',
    ),
    "unknown_job": (
        {"cluster": {**ONE, "workers": ["h1:1"]}, "task": TASK},
        r"unknown job 'workers'.*chief, worker, ps, evaluator",
    ),
    "address_twice": (
        {"cluster": {**ONE, "worker": ["h1:1", "h0:1"]}, "task": TASK},
        r"address 'h0:1' twice, for chief\[0\] and worker\[1\].*its own port",
    ),
    "gap": (
        {"cluster": {**ONE, "worker": {"0": "h1:1", "2": "h2:1"}}, "task": TASK},
        r'indices of "worker" .*are \[\'0\', \'2\'\]: write "0" to "1" without a gap',
    ),
    "addresses_not_a_list": (
        {"cluster": {"chief": "h0:1"}, "task": TASK},
        r'"chief" in "cluster" is \'h0:1\', which is no list .*: write "chief": \[',
    ),
    "address_not_a_string": (
        {"cluster": {"chief": [2222]}, "task": TASK},
        r'"chief" in "cluster" holds 2222, .*write "chief": \[',
    ),
    "two_chiefs": (
        {"cluster": {"chief": ["h0:1", "h1:1"]}, "task": TASK},
        r"has 2 chiefs, \['h0:1', 'h1:1'\]: keep one .*\"worker\"",
    ),
    "ps_without_chief": (
        {"cluster": {"worker": ["h0:1"], "ps": ["h1:1"]}, "task": TASK},
        r'has parameter servers but no chief, .*add "chief":',
    ),
    "ps_only": (
        {"cluster": {"ps": ["h1:1"]}, "task": {"type": "ps", "index": 0}},
        r'has parameter servers but neither chief nor worker, .*add "chief":',
    ),
    "local_task_not_a_worker": (
        {"task": {"type": "ps", "index": 0}},
        r'"task" is \'ps\' 0, but "cluster" is missing or empty: add "cluster":',
    ),
    "local_task_not_the_first": (
        {"task": {"type": "worker", "index": 1}},
        r'"task" is \'worker\' 1, but "cluster" is missing or empty: add "cluster":',
    ),
    "no_task": ({"cluster": ONE}, r'"task" is \{\} .* its "type": add "type":'),
    "no_type": (
        {"cluster": ONE, "task": {"index": 0}},
        r'"task" is \{\'index\': 0\} .* its "type": add "type": "worker"',
    ),
    "no_index": (
        {"cluster": ONE, "task": {"type": "chief"}},
        r'"task" is \{\'type\': \'chief\'\} .* its "index": add "index": 0',
    ),
    "unknown_type": (
        {"cluster": ONE, "task": {"type": "boss", "index": 0}},
        r'"type" in "task" is \'boss\': write one of chief, worker, ps, evaluator\.$',
    ),
    "task_is_master": (
        {"cluster": ONE, "task": {"type": "master", "index": 0}},
        r'"type" in "task" is \'master\': write .* A "master" is a "chief" here',
    ),
    "type_not_listed": (
        {"cluster": ONE, "task": {"type": "worker", "index": 0}},
        r'is a \'worker\', but "cluster" lists only chief: add "worker":',
    ),
    "index_too_large": (
        {"cluster": ONE, "task": {"type": "chief", "index": 1}},
        r'"index" in "task" is 1, but "cluster" lists 1 chief .*write 0 to 0',
    ),
    "index_a_string": (
        {"cluster": ONE, "task": {"type": "chief", "index": "0"}},
        r'"index" in "task" is \'0\', which is no integer: write .*without quotes',
    ),
    "index_a_bool": (
        {"cluster": ONE, "task": {"type": "chief", "index": False}},
        r'"index" in "task" is False, which is no integer',
    ),
    "index_negative": (
        {"cluster": ONE, "task": {"type": "chief", "index": -1}},
        r'"index" in "task" is -1, which is negative: write "index": 0',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    config, message = REFUSED[case]
    text = config if isinstance(config, str) else json.dumps(config)
    with pytest.raises(ValueError, match=f"(?s)^TF_CONFIG.*{message}"):
        tf_config.parse_tf_config(text)


@hypothesis.given(workers=st.integers(0, 4), ps=st.integers(0, 3))
@hypothesis.settings(max_examples=20, deadline=None)
def test_global_ids_count_every_training_task_once(workers, ps):
    jobs = {
        "ps": [f"p{i}:1" for i in range(ps)],
        "worker": [f"w{i}:1" for i in range(workers)],
        "chief": ["c:1"],
    }
    tasks = [parse(jobs, job, i) for job in jobs for i in range(len(jobs[job]))]
    ids = sorted(task.global_id_in_cluster for task in tasks)
    assert ids == list(range(1 + workers + ps))
    assert sum(task.is_chief for task in tasks) == 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["0", "1", *FULL]), inner, max_size=2)
    ),
    max_leaves=6,
)


@hypothesis.given(jobs=JSON_VALUES, task=JSON_VALUES)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_json_is_parsed_or_refused_in_words(jobs, task):
    try:
        tf_config.parse_tf_config(json.dumps({"cluster": jobs, "task": task}))
    except ValueError as error:
        assert str(error).startswith("TF_CONFIG")
