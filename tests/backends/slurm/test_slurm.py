"""Requests that Slurm refuses, and jobs that never start; the commands of Slurm are stand-ins."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from shlex import quote

import pytest
from tests.factories.clock import Clock
from tests.factories.command_line import accept, refused
from tests.factories.shell import write_program
from tests.factories.standin_slurm import HELD, NODES, StandinSlurm

from accept.backends.slurm import backend
from accept.backends.slurm.client import JobState, parse_job
from accept.backends.slurm.nodes import Node
from accept.backends.slurm.submit import SHARED, batch_script, enroot_image, find_pyxis
from accept.config.site import Site
from accept.core.errors import Exit, NotStarted
from accept.core.runner.slurm import STATUS
from accept.core.runner.slurm_step import Pyxis, SlurmRun
from accept.core.serde import Invalid, read
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

MUNGE = "sbatch: error: Munge encode failed: Failed to access socket: No such file or directory"
REFUSED = "sbatch: error: Batch job submission failed"
DOWN = "Unable to contact slurm controller (connect failure)"


@pytest.fixture
def slurm(tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSlurm:
    """Return a cluster of three nodes, one of them drained, that holds every job."""
    monkeypatch.setenv("PATH", f"{tmp_path}/slurm:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("accept.backends.slurm.client._PAUSE", 0.0)
    return StandinSlurm(tmp_path / "slurm")


def is_refused(*options: str, error: str, code: int = 2) -> str:
    """Start a run that is refused, and check that nothing is left of it."""
    words = ("run", "--backend", "slurm", "--machine", "cpu", "--quiet")
    text = refused(*words, *options, error=error, code=code)
    assert rundir.listed() == ()
    return text


IN_CONTAINER = "slurm: {launcher: srun-pmix}\ncontainer: {runtime: podman, image: a/b}\n"
TWO = ("--backend", "slurm", "-m", "cpu", "--nodes", "2")


def fails(error: str, code: int) -> None:
    """Start a run on two nodes that fails."""
    done = accept("run", *TWO, "--quiet")
    assert (done.code, done.error) == (code, error), done.err


@pytest.mark.parametrize(
    ("options", "site", "error", "code"),
    [
        (["2", "--partition", "gup"], "", "E-SLURM-PARTITION", 2),
        (["n1,n9"], "", "E-SLURM-NODE-UNKNOWN", 2),
        (["n1,n3"], "", "E-SLURM-NODE-UNUSABLE", 4),
        (["4"], "", "E-SLURM-TOO-MANY-NODES", 2),
        (["3", "--exclude", "n1"], "", "E-SLURM-TOO-MANY-NODES", 2),
        (["all", "--exclude", "n9"], "", "E-SLURM-NODE-UNKNOWN", 2),
        (["n1,n2"], "slurm: {exclude: [n1]}\n", "E-NODES-MISMATCH", 2),
        (["2", "--time", "soon"], "", "E-OPTION-DURATION", 2),
        (["2", "--partition", "a b"], "", "E-SLURM-OPTION", 2),
        (["2", "--sbatch-arg", "switches=1"], "", "E-SLURM-OPTION", 2),
        (["2"], "results: {location: /nowhere/at/all}\n", "E-SLURM-RESULTS", 2),
        # srun starts no ranks in a container.
        (["2"], IN_CONTAINER, "E-SLURM-LAUNCHER", 2),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    slurm: StandinSlurm, tmp_path: Path, options: list[str], site: str, error: str, code: int
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(site)
    of_site = ("--site", str(path)) if site else ()
    is_refused("--nodes", *options, *of_site, error=error, code=code)
    assert slurm.cancelled == []


@pytest.mark.parametrize(
    ("text", "error", "code"),
    [
        ("Invalid account or account/partition combination specified", "E-SLURM-ACCOUNT", 2),
        ("Invalid qos specification", "E-SLURM-QOS", 2),
        ("Requested reservation is invalid", "E-SLURM-RESERVATION", 2),
        ("Invalid generic resource (gres) specification", "E-SLURM-GRES", 2),
        ("Invalid feature specification", "E-SLURM-CONSTRAINT", 2),
        ("Requested node configuration is not available", "E-SLURM-CONSTRAINT", 2),
        ("Job violates accounting/QOS policy", "E-SLURM-REFUSED", 2),
        (MUNGE, "E-SLURM-MUNGE", 4),
        (DOWN, "E-SLURM-CONTROLLER", 4),
    ],
)
def test_what_sbatch_refuses_has_its_own_code(
    slurm: StandinSlurm, text: str, error: str, code: int
) -> None:
    slurm.fail("sbatch", f"{REFUSED}: {text}")
    is_refused("--nodes", "2", error=error, code=code)


def test_the_option_that_sbatch_does_not_know_is_named(slurm: StandinSlurm) -> None:
    lines = ("sbatch: unrecognized option '--foo=1'", 'Try "sbatch --help" for more information')
    slurm.set("sbatch", "".join(f"echo {quote(line)} >&2; " for line in lines) + "exit 255")
    assert "'--foo=1'" in is_refused("--nodes", "2", error="E-SLURM-REFUSED")


@pytest.mark.parametrize(
    ("partition", "time", "figures"),
    [
        ("gpu|down|infinite", "", ["partition gpu is down"]),
        ("gpu|up|10:00", "", ["42 min", "allows 10", "--time 10m"]),
        ("gpu|up|5:00", "", ["42 min", "allows 5", "--time 7m"]),
        ("gpu|up|1-00:00:00", "1-00:01:00", ["1441 min", "allows 1440"]),
    ],
)
def test_a_job_that_its_partition_never_starts_is_not_submitted(
    slurm: StandinSlurm, partition: str, time: str, figures: list[str]
) -> None:
    others = f"*%P*) echo gpu ;; *) printf '{NODES}' ;;"
    slurm.set("sinfo", f"case $* in *%R*) echo '{partition}' ;; {others} esac")
    of_time = ["--time", time] if time else []
    words = ("--partition", "gpu", "--nodes", "2", *of_time)
    shown = is_refused(*words, error="E-SLURM-NEVER-STARTS", code=4)
    assert [figure for figure in figures if figure not in shown] == []


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--partition", "gpu", "--nodes", "2"),
        ("run", "--backend", "slurm", "--nodes", "64"),
        ("doctor", "--partition", "gpu", "--nodes", "2"),
        ("init", "--partition", "gpu"),
        ("init", "--backend", "slurm"),
    ],
    ids=" ".join,
)
def test_a_cluster_that_does_not_answer_is_not_an_empty_one(
    slurm: StandinSlurm, command: tuple[str, ...]
) -> None:
    slurm.fail("sinfo", "sinfo: fatal: Could not establish a configuration source")
    shown = refused(*command, error="E-SLURM-CONTROLLER", code=4)
    assert "Could not establish a configuration source" in shown


def test_a_machine_without_the_commands_is_refused(slurm: StandinSlurm) -> None:
    for program in slurm.folder.iterdir():
        program.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(slurm.folder))
        is_refused("--nodes", "2", error="E-SLURM-MISSING", code=4)


def test_a_job_reports_why_its_launcher_failed(slurm: StandinSlurm) -> None:
    gone = HELD.replace("PENDING Reason", "FAILED Comment=accept: E-SLURM-RANKS bad ranks Reason")
    slurm.set("scontrol", f"echo '{gone}'")
    fails("E-SLURM-RANKS", 4)


class TestTheNumberOfTheJob:
    def test_may_come_after_the_text_of_a_wrapper(self, slurm: StandinSlurm) -> None:
        slurm.set("sbatch", "echo Welcome; echo '7;alpha'; echo 'Your budget: 12 %'")
        done = accept("submit", *TWO, "--quiet")
        assert done.code == 0, done.err

    def test_is_required(self, slurm: StandinSlurm) -> None:
        slurm.set("sbatch", "echo submitted, thank you")
        is_refused("--nodes", "2", error="E-SLURM-NO-JOB-ID", code=4)
        assert slurm.cancelled
        assert slurm.cancelled[0].startswith("--name=accept-")

    def test_may_be_lost_on_the_way(self, slurm: StandinSlurm) -> None:
        """Slurm has the job, but sbatch does not know it."""
        slurm.fail("sbatch", f"{REFUSED}: Socket timed out on send/recv operation")
        is_refused("--nodes", "2", error="E-SLURM-CONTROLLER", code=4)
        (cancelled,) = slurm.cancelled
        assert cancelled.startswith("--name=accept-")


@pytest.mark.parametrize(
    "reason", ["JobHeldUser", "JobHeldAdmin", "PartitionDown", "InvalidAccount"]
)
def test_a_job_that_only_a_person_can_start_is_removed(slurm: StandinSlurm, reason: str) -> None:
    pending, gone = HELD.replace("JobHeldAdmin", reason), HELD.replace("PENDING", "CANCELLED")
    marker = slurm.folder / "cancelled"
    slurm.set("scontrol", f"if [ -e {marker} ]; then echo '{gone}'; else echo '{pending}'; fi")
    fails("E-SLURM-NEVER-STARTS", 4)
    assert slurm.cancelled == ["7"]


def allocate(slurm: StandinSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shell have a job with one node."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    job = HELD.replace("PENDING", "RUNNING")
    slurm.set("scontrol", f"case $* in *hostnames*) echo n1 ;; *) echo '{job}' ;; esac")


def test_a_start_in_an_allocation_that_is_interrupted_ends_its_step(
    slurm: StandinSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate(slurm, monkeypatch)
    begun, ended = slurm.folder / "begun", slurm.folder / "ended"
    slurm.set(
        "srun",
        f"trap ': > {ended}; exit' TERM; : > {begun}; cat > /dev/null; read a < {begun}.pipe",
    )
    os.mkfifo(f"{begun}.pipe")

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.02)
        raise KeyboardInterrupt

    Clock(monkeypatch).on_sleep(interrupt)
    assert accept("submit", "--backend", "slurm", "-m", "cpu").code == Exit.CTRL_C
    assert (ended.exists(), rundir.listed()) == (True, ())


def test_a_step_in_an_allocation_goes_on_if_the_controller_does_not_list_it(
    slurm: StandinSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate(slurm, monkeypatch)
    slurm.set("srun", "cat > /dev/null")
    done = accept("submit", "--backend", "slurm", "-m", "cpu", "--quiet")
    assert done.code == 0, done.err
    Clock(monkeypatch)
    looks = slurm.folder / "looks"
    # Each look tries three times. At the end, the step is not listed.
    down = f"echo >> {looks}; [ $(wc -l < {looks}) -gt 7 ] || {{ echo '{DOWN}' >&2; exit 1; }}"
    slurm.set("squeue", down)
    assert accept("watch", "last").error == "E-SLURM-JOB-ENDED"
    assert slurm.cancelled == []


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("TIMEOUT", "E-SLURM-TIME-LIMIT"),
        ("DEADLINE", "E-SLURM-TIME-LIMIT"),
        ("CANCELLED by 1000", "E-SLURM-CANCELLED"),
        ("PREEMPTED", "E-SLURM-PREEMPTED"),
        ("OUT_OF_MEMORY", "E-SLURM-OUT-OF-MEMORY"),
        ("NODE_FAIL", "E-SLURM-NODE-LOST"),
        ("BOOT_FAIL", "E-SLURM-NODE-LOST"),
        ("REVOKED", "E-SLURM-JOB-ENDED"),
    ],
)
def test_a_job_that_slurm_ends_before_it_left_evidence_is_interrupted(
    slurm: StandinSlurm, state: str, error: str
) -> None:
    slurm.set("scontrol", f"echo '{HELD.replace('PENDING', state)}'")
    fails(error, 5)


@pytest.mark.parametrize(
    ("node", "advice"), [("", "nothing was measured: run again"), ("n1", "set ACCEPT_RUNS to")]
)
def test_no_command_is_suggested_for_evidence_that_no_command_brings_back(
    slurm: StandinSlurm, node: str, advice: str
) -> None:
    slurm.set("scontrol", f"echo '{HELD.replace('PENDING', 'CANCELLED')}{node}'")
    done = accept("run", *TWO, "--quiet")
    assert (done.code, done.error) == (5, "E-SLURM-CANCELLED")
    assert advice in done.err
    assert "accept collect" not in done.err
    assert accept("judge", "last").error == "E-EVIDENCE-GONE"
    assert "nothing is left to collect" in accept("list", "runs").out


def test_the_status_of_the_coordinator_counts_if_only_a_task_ran_out_of_memory(
    slurm: StandinSlurm,
) -> None:
    done = accept("submit", *TWO, "--quiet")
    assert done.code == 0, done.err
    (folder,) = rundir.listed()
    (folder / SHARED / STATUS).write_text("3\n")
    slurm.set("scontrol", f"echo '{HELD.replace('PENDING', 'OUT_OF_MEMORY')}'")
    # It left no evidence, but what ended it is not what the job reports.
    assert accept("watch", "last").error == "E-EVIDENCE-GONE"


def test_a_job_that_is_cancelled_before_its_program_starts_leaves_no_folder(tmp_path: Path) -> None:
    python, begun, site = (tmp_path / name for name in ("python", "begun", "site.yaml"))
    write_program(python, f"touch {begun}\nsleep 0.5")
    site.write_text(f"tools: {{python: {python}}}\n")
    run = SlurmRun(
        attempt="one", folder=f"{tmp_path}/accept-one", shared="", start_seconds=1, life_seconds=1,
        keep_seconds=1, enough_minutes=7, hold_seconds=1, gpus=False, busy_ok=True,
    )  # fmt: skip
    bundle = render(resolve(Options(machine="cpu", backend="slurm", nodes=1, site=str(site))))
    (tmp_path / "script").write_text(batch_script(run, bundle))
    process = subprocess.Popen(["sh", tmp_path / "script"])
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait() == Exit.INTERRUPTED
    assert not Path(f"{run.folder}.job").exists()


def test_a_dry_run_shows_when_the_job_would_start(slurm: StandinSlurm) -> None:
    slurm.set("sbatch", 'echo "sbatch: Job 8 to start at 2026-11-23T10:00:00" >&2')
    done = accept("run", *TWO, "--dry-run")
    assert done.code == 0, done.err
    assert "Job 8 to start at 2026-11-23T10:00:00" in done.err
    assert rundir.listed() == ()


def test_a_dry_run_names_the_drained_nodes_that_its_job_would_wait_for(
    slurm: StandinSlurm,
) -> None:
    slurm.fail("sbatch", "allocation failure: Requested node configuration is not available")
    words = ("--backend", "slurm", "-m", "cpu", "--dry-run", "--nodes")
    done = accept("run", *words, "3")
    assert done.code == 0, done.err
    assert "n3 (drained: bad fan)" in done.err
    assert accept("run", *words, "2").error == "E-SLURM-CONSTRAINT"


@pytest.mark.usefixtures("slurm")
def test_an_excluded_node_of_a_list_is_left_out() -> None:
    done = accept(
        "submit", "--backend", "slurm", "-m", "cpu", "--nodes", "n1,n2", "--exclude", "n1"
    )
    assert "1 node over slurm (n2)" in done.err


@pytest.mark.usefixtures("slurm")
def test_a_time_limit_that_is_too_short_is_shown_with_one_that_is_enough() -> None:
    assert "enough: --time 7m" in accept("submit", *TWO, "--time", "00:01:00").err
    assert "enough" not in accept("submit", *TWO, "--time", "7m").err


@pytest.mark.usefixtures("slurm")
def test_no_drained_node_is_called_ready() -> None:
    assert "nothing is missing on slurm;" in accept("doctor", *TWO).out


@pytest.mark.usefixtures("slurm")
def test_the_list_of_nodes_without_a_cluster_names_the_option_for_slurm() -> None:
    assert "--partition" in accept("list", "nodes").err


@pytest.fixture
def many(slurm: StandinSlurm) -> StandinSlurm:
    """Return a cluster of 4,096 idle nodes."""
    names = [f"a-long-name-of-a-node-n{number:04}" for number in range(1, 4097)]
    (slurm.folder / "nodes").write_text("".join(f"{name}|idle|gpu:8|none\n" for name in names))
    (slurm.folder / "left").write_text("\n".join(names[2:]))
    slurm.set(
        "sinfo",
        f"case $* in *%P*) echo gpu* ;; *%R*) echo 'gpu|up|infinite' ;; "
        f"*) cat {slurm.folder}/nodes ;; esac",
    )
    return slurm


def test_a_run_on_4096_nodes_starts_again_once_without_its_first_and_another_lost_node(
    many: StandinSlurm,
) -> None:
    folder, name = many.folder, "a-long-name-of-a-node-n"
    many.set("sbatch", f'echo "$*" >> {folder}/jobs; cat > {folder}/script; wc -l < {folder}/jobs')
    lost = f"JobId=1 JobState=RUNNING NodeList={name}[0003-4096] BatchHost={name}0001"
    many.set(
        "scontrol",
        f"case $* in *hostnames*) cat {folder}/left ;; *) "
        f"if [ -e {folder}/cancelled ]; then echo JobState=PREEMPTED; else echo {lost}; fi ;; esac",
    )
    done = accept("run", "--partition", "gpu", "-m", "cpu", "--nodes", "all", "--quiet")
    assert (done.code, done.error) == (5, "E-SLURM-PREEMPTED"), done.err
    first, second = (folder / "jobs").read_text().splitlines()
    assert f"--nodelist={name}[0001-4096] " in first
    assert f"--nodelist={name}[0003-4096] " in second
    assert "--nodes=4094 " in second
    assert many.cancelled == ["1"]


def test_all_nodes_are_the_idle_ones(slurm: StandinSlurm) -> None:
    slurm.set("sbatch", 'echo "sbatch: Job 8 to start" >&2')
    done = accept("run", "--partition", "gpu", "-m", "cpu", "--nodes", "all", "--dry-run")
    assert done.code == 0, done.err
    assert "2 nodes over slurm (n1, n2)" in done.out


@pytest.mark.usefixtures("slurm")
def test_idle_nodes_are_listed() -> None:
    assert accept("list", "nodes", "--partition", "gpu").out.split() == ["n1", "n2"]


def test_an_allocation_is_used_if_no_nodes_are_named(
    slurm: StandinSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    slurm.set("scontrol", "echo n1; echo n2")
    done = accept("run", "--backend", "slurm", "-m", "cpu", "--dry-run")
    assert done.code == 0, done.err
    assert "2 nodes over slurm (n1, n2)" in done.out
    is_refused("--nodes", "3", "--dry-run", error="E-SLURM-TOO-MANY-NODES")


def test_the_machine_is_that_of_the_gpus_that_slurm_lists(slurm: StandinSlurm) -> None:
    slurm.set("sbatch", 'echo "sbatch: Job 8 to start" >&2')
    done = accept("run", "--backend", "slurm", "--nodes", "2", "--dry-run")
    assert "machine gpu," in done.out


def test_commands_to_drain_name_the_cause_in_the_reason() -> None:
    drain, resume = backend.drain(["n7"], "slow-outlier 20261122-150103-1a2b (strong)")
    assert drain == (
        "scontrol update nodename=n7 state=drain "
        "reason='accept: slow-outlier 20261122-150103-1a2b (strong)'"
    )
    assert resume == "scontrol update nodename=n7 state=resume"


def test_a_job_is_read_from_text() -> None:
    line = (
        "JobId=12 JobName=accept-a UserId=root(0) JobState=RUNNING Reason=None Restarts=1 "
        "ExitCode=3:0 StartTime=2026-11-23T07:57:50 NodeList=n[1-4] BatchHost=n1 "
        "Comment=accept: n1: no sshd here Power="
    )
    assert parse_job(line) == JobState(
        state="RUNNING", first="n1", nodes="n[1-4]", exit=3, start="2026-11-23T07:57:50",
        restarts=1, comment="accept: n1: no sshd here",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        *((text, True) for text in ("", "\n", "=", "JobState", "slurm_load_jobs error: x")),
        # The job may have processes.
        *((f"JobState={state}", False) for state in ("PENDING", "CONFIGURING", "COMPLETING")),
    ],
)
def test_a_job_that_slurm_does_not_know_has_ended(text: str, *, ended: bool) -> None:
    assert parse_job(text).ended is ended


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:8", 8), ("gpu:h100:8(S:0-1)", 8), ("gpu:a:4,gpu:b:2", 6), ("(null)", 0), ("gdr:1", 0)],
)
def test_gpus_are_counted_in_gres(gres: str, gpus: int) -> None:
    assert Node(name="n1", state="idle", reason="", gres=gres).gpus == gpus


@pytest.mark.parametrize(
    ("state", "usable"),
    [("idle", True), ("allocated", True), ("mixed", True), ("completing", True)]
    + [(state, False) for state in ("drained", "draining", "down", "down*", "idle*", "maint")],
)
def test_a_node_is_usable_if_slurm_gives_it_to_jobs(state: str, *, usable: bool) -> None:
    assert Node(name="n1", state=state, reason="", gres="").usable is usable


@pytest.mark.parametrize("key", ["partition", "account", "qos", "reservation", "constraint"])
def test_names_in_a_site_file_may_not_contain_blanks(key: str) -> None:
    with pytest.raises(Invalid):
        read(Site, {"slurm": {key: "a b"}})


class TestContainers:
    """The runtime of a job's container: Pyxis if the cluster has it, or one on the nodes."""

    HELP = "echo '--container-image=IMAGE --container-writable --chdir=PATH'"

    def found(self, tmp_path: Path, runtime: str) -> Pyxis | None:
        site = tmp_path / "site.yaml"
        site.write_text(f"container: {{runtime: {runtime}, mounts: [/data]}}\n")
        options = Options(
            machine="cpu", backend="slurm", nodes=2, site=str(site), image="r.example/a/b:1"
        )
        return find_pyxis(resolve(options))

    def test_pyxis_gets_the_options_that_it_has(self, slurm: StandinSlurm, tmp_path: Path) -> None:
        slurm.set("srun", self.HELP)
        pyxis = self.found(tmp_path, "null")
        assert pyxis
        assert pyxis.words == (
            "--container-image=r.example#a/b:1",
            "--container-mounts=/tmp:/tmp,/data:/data",
            "--container-writable",
        )
        assert self.found(tmp_path, "podman") is None

    def test_a_cluster_without_pyxis(self, slurm: StandinSlurm, tmp_path: Path) -> None:
        slurm.set("srun", "echo '--chdir=PATH'")
        assert self.found(tmp_path, "null") is None
        with pytest.raises(NotStarted) as error:
            self.found(tmp_path, "pyxis")
        assert error.value.code == "E-CONTAINER-RUNTIME-MISSING"

    @pytest.mark.parametrize(
        ("image", "expected"),
        [
            ("ubuntu", "ubuntu"),
            ("library/ubuntu:24.04", "library/ubuntu:24.04"),
            ("docker://localhost:5000/a", "localhost:5000#a"),
            ("localhost/a", "localhost#a"),
            ("nvcr.io/nvidia/pytorch:26.01-py3", "nvcr.io#nvidia/pytorch:26.01-py3"),
            ("nvcr.io#nvidia/pytorch", "nvcr.io#nvidia/pytorch"),
            ("/shared/a.sqsh", "/shared/a.sqsh"),
        ],
    )
    def test_images_in_the_notation_of_enroot(self, image: str, expected: str) -> None:
        assert enroot_image(image) == expected
