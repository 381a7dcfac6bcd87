"""`launch --tpu` with a fake gcloud, which runs the commands of the machine in a folder."""

import os
import re
import subprocess

import pytest

from gin_estimator import launch
from gin_estimator.launcher import tpu

# Records its calls. The machine is the folder $VM: its home, python3, uv and what they install.
GCLOUD = r"""#!/bin/bash
echo "$3 $4 $*" | cut -d' ' -f1,2 >> $VM/../calls
case "$3 $4" in
  "queued-resources create")
    if [ -f $VM/denied ] || [ -f $VM/state ]; then exit 1; fi
    echo WAITING_FOR_RESOURCES > $VM/state; echo "$*" >> $VM/../created;;
  "queued-resources describe")
    state=$(cat $VM/state 2> /dev/null); echo $state
    [ "$state" = WAITING_FOR_RESOURCES ] && cat $VM/becomes > $VM/state
    [ "$state" = QUEUED ] && kill -INT $LAUNCHER;;
  "queued-resources delete") [ -f $VM/keep ] && exit 1; rm -f $VM/state;;
  "tpu-vm scp") cp "$5" $VM/code.tar.gz;;
  "tpu-vm ssh")
    [ "$(cat $VM/state)" = ACTIVE ] || exit 1
    for each; do [ "${each#--command=}" = "$each" ] || command=${each#--command=}; done
    cd $VM; HOME=$VM PATH=$VM/bin:$PATH setsid bash -c "$command" & connection=$!
    while kill -0 $connection 2> /dev/null; do
      [ "$(cat $VM/state)" = ACTIVE ] || { kill -- -$connection; exit 255; }
      sleep 0.05
    done
    wait $connection; exit $?;;
esac
"""
UV = r"""#!/bin/bash
mkdir -p env/bin
echo 'echo pip "$@" >> $HOME/../calls' > env/bin/pip
echo 'echo /lib/libtpu.so' > env/bin/python
cat > env/bin/gin-estimator <<'END'
#!/bin/bash
echo "$TF_PLUGGABLE_DEVICE_LIBRARY_PATH | $PWD | $(ls | tr '\n' ' ')| $*" >> $HOME/../trainings
code=$(head -n 1 $HOME/../codes); sed -i 1d $HOME/../codes
echo "step 1, code $code"
[ "$code" = preempted ] && { echo SUSPENDED > $HOME/state; exec sleep 60; }
[ "$code" = waits ] && { trap 'exit 75' TERM; kill -INT $LAUNCHER; while :; do sleep 0.05; done; }
exit $code
END
chmod +x env/bin/*
"""
TRAIN = ["--", "--gin_file=conf/run.gin", "--gin.TRAIN_STEPS=3"]
FLAGS = ["--tpu=v5litepod-8", "--zone=us-central1-a", "--bucket=gs://b/runs"]
CREATED = "queued-resources create"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of git, in the working directory, with a fake gcloud on PATH."""
    for name, text in {
        "bin/gcloud": GCLOUD,
        "vm/becomes": "ACTIVE",
        "vm/bin/python3": "#!/bin/sh\n",
        "vm/.local/bin/uv": UV,
        "project/conf/run.gin": "",
        "project/pyproject.toml": "",
        "project/unknown.gin": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path / "project")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "conf", "pyproject.toml"], check=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("VM", str(tmp_path / "vm"))
    monkeypatch.setenv("LAUNCHER", str(os.getpid()))
    monkeypatch.setattr(tpu, "_POLL_SECS", 0.01)
    return tmp_path


def launched(project, *codes, flags=()):
    (project / "codes").write_text("".join(f"{code}\n" for code in codes))
    code = launch.main(["launch", *FLAGS, *flags, *TRAIN])
    calls = (project / "calls").read_text().splitlines()
    trainings = project / "trainings"
    return code, calls, trainings.read_text().splitlines() if trainings.exists() else []


def test_a_training_starts_again_on_75_and_the_machine_is_deleted(project, capfd):
    code, calls, trainings = launched(project, 75, 0, flags=["--spot"])
    assert code == 0
    ssh = "tpu-vm ssh"
    assert [each for each in calls if not each.startswith("pip")] == [
        CREATED,
        *["queued-resources describe"] * 2,
        "tpu-vm scp",
        *[ssh] * 3,  # Installs; trains twice.
        "queued-resources delete",
    ]
    assert [each for each in calls if each.startswith("pip")] == [
        "pip install --quiet tensorflow==2.19.1 .",
        "pip install --quiet tensorflow-tpu==2.19.1",
        "pip install --quiet --force-reinstall --no-deps tensorflow-tpu==2.19.1",
    ]
    assert (
        trainings
        == [
            f"/lib/libtpu.so | {project}/vm/code | conf pyproject.toml | --gin_file=conf/run.gin "
            "--gin.TRAIN_STEPS=3 --model_dir=gs://b/runs/run --execution=tpu"
        ]
        * 2
    )
    assert "--spot" in (project / "created").read_text()
    out, err = capfd.readouterr()
    assert "step 1, code 75" in out and "step 1, code 0" in out
    assert "[launch] the training exited with 75" in err


@pytest.mark.parametrize(
    "codes, flags, expected",
    [
        ([1], [], 1),
        ([75, 75], ["--max_restarts=1"], 75),
        (["preempted"], [], 75),  # The same command continues.
        (["waits"], [], 75),  # Ctrl-C: the training saves.
    ],
)
def test_the_machine_is_always_deleted(codes, flags, expected, project):
    code, calls, trainings = launched(project, *codes, flags=flags)
    assert code == expected and len(trainings) == len(codes)
    assert calls.count(CREATED) == calls.count("queued-resources delete") == 1
    assert not (project / "vm/state").exists()


def test_nothing_is_created_without_credentials(project, capfd):
    (project / "vm/denied").touch()
    code, calls, trainings = launched(project)
    assert (code, calls, trainings) == (1, [CREATED, "queued-resources describe"], [])
    assert "[launch]" not in capfd.readouterr().err


@pytest.mark.parametrize("becomes, expected", [("FAILED", 1), ("QUEUED", 130)])
def test_a_machine_that_never_exists(becomes, expected, project):
    """Or Ctrl-C, while it waits in the queue."""
    (project / "vm/becomes").write_text(becomes)
    code, calls, trainings = launched(project)
    assert (code, trainings, calls[-1]) == (expected, [], "queued-resources delete")


def test_a_machine_that_is_not_deleted_is_named(project, capfd, monkeypatch):
    monkeypatch.setattr(tpu, "_ATTEMPTS", 2)
    (project / "vm/keep").touch()
    assert launched(project, 0)[0] == 1
    assert "not deleted, it may cost money. Run gcloud compute tpus" in capfd.readouterr().err
    code, calls, trainings = launched(project, 0)  # It exists: it is neither used nor deleted.
    assert code == 2 and len(trainings) == 1 and calls.count("queued-resources delete") == 2
    assert "--name is run, which exists: expected a new one. Set" in capfd.readouterr().err


def test_the_commands_are_printed(project, capsys):
    options = [*FLAGS, "--project=p", "--name=mine", "--install=-r r.txt", "--print_commands"]
    assert launch.main(["launch", *options, *TRAIN]) == 0
    assert not (project / "calls").exists()
    printed = capsys.readouterr().out
    where = "--zone=us-central1-a --project=p --quiet"
    lines = printed.splitlines()
    assert " ".join(line[2:] for line in lines[::2]) == (
        "create state pack copy install train save delete"
    )
    assert lines[1::2][:4] + lines[-1:] == [
        f"gcloud compute tpus {CREATED} mine --node-id=mine --accelerator-type=v5litepod-8 "
        f"--runtime-version=v2-alpha-tpuv5-lite {where}",
        f"gcloud compute tpus queued-resources describe mine '--format=value(state.state)' {where}",
        "bash -c 'git ls-files -z | tar --null -T - -czf code.tar.gz'",
        f"gcloud compute tpus tpu-vm scp code.tar.gz mine:code.tar.gz {where}",
        f"gcloud compute tpus queued-resources delete mine --force {where}",
    ]
    ssh = rf"gcloud compute tpus tpu-vm ssh mine '--command=set -e; .*' {where}"
    assert all(re.fullmatch(ssh, line) for line in lines[9:15:2])
    assert "pip install --quiet tensorflow==2.19.1 -r r.txt; " in lines[9]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([*FLAGS[:2], *TRAIN], "--bucket is None: expected a gs:// path. Set --bucket=gs://my-"),
        ([FLAGS[0], FLAGS[2], *TRAIN], "--zone is None: expected a zone.*Set --zone=us-central1-a"),
        ([*FLAGS, "--tpu=v4-32", *TRAIN], "--tpu is v4-32: expected v2, .* one host. Set --tpu=v5"),
        ([*FLAGS, "--workers=2", *TRAIN], "--workers is 2 with --tpu: expected one kind. Leave"),
        ([*FLAGS, "--data_workers=2", *TRAIN], "--data_workers is 2 with --tpu: expected one kind"),
        (["--zone=z", "--", "--model_dir=m"], "--zone is z without --tpu: expected one kind"),
        ([*FLAGS, "--name=A", *TRAIN], "--name is A: expected a-z, 0-9 and -. Set --name=run-1"),
        ([*FLAGS, "--", "program.py"], "program.py is written after --: expected flags. Set --gin"),
        ([*FLAGS, "--", "--debug"], "--gin_file is : expected the configuration, after --"),
        ([*FLAGS, *TRAIN, "--model_dir=m"], "--model_dir is m: .* Set --model_dir=gs://b/runs/run"),
        ([*FLAGS, *TRAIN, "--execution=single_host"], "--execution is single_host: expected tpu"),
        ([*FLAGS, "--", "--gin_file=unknown.gin"], "--gin_file is unknown.gin: .* git add"),
    ],
)
def test_wrong_flags(arguments, message, project, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(["launch", *arguments])
    assert ended.value.code == 2
    assert re.search(f"^error: {message}", capsys.readouterr().err)


def test_a_folder_without_git_or_without_a_package(project, capsys, monkeypatch):
    subprocess.run(["git", "rm", "-q", "--cached", "pyproject.toml"], check=True)
    with pytest.raises(SystemExit):
        launch.main(["launch", *FLAGS, *TRAIN])
    assert "--install is '.' in " in capsys.readouterr().err
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    with pytest.raises(SystemExit):
        launch.main(["launch", *FLAGS, *TRAIN])
    assert re.search(
        "the working directory is .*: expected files that git", capsys.readouterr().err
    )
