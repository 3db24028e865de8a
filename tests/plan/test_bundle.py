"""The rendered bundle: reproducible, complete, small, and independent of this machine."""

from __future__ import annotations

import ast
import bz2
import functools
import getpass
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories import keys
from tests.factories.command_line import SOURCE, accept, program, refused
from tests.factories.paths import ROOT, TESTS
from tests.factories.shell import run_program

from accept.config import resources
from accept.core import checks, evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, BadInput
from accept.core.limits import MOST_HOSTS
from accept.core.plan import Plan
from accept.core.serde import dump, read
from accept.plan import node_code
from accept.plan.bundle import Bundle, code, load_bundle, render
from accept.plan.chart import chart_folder
from accept.plan.helm_values import helm_values, values_of
from accept.plan.resolve import Options, Resolved, resolve

#: The site file of a cluster, because a run on a cluster needs an image.
SITE = TESTS / "site.yaml"
CPU = ("-m", "cpu", "-n", 2, "--site", SITE)
#: Maximum size of the archives for a node, and of Helm values, in bytes.
LIMIT, VALUES_LIMIT = 580_000, 64_000
MACHINES = ("cpu", "gpu", "a4-highgpu-8g", "a3-megagpu-8g")


def rendered(machine: str = "cpu", **options: Any) -> tuple[Resolved, Bundle]:
    given = {"nodes": 2, "suite": "standard", "site": str(SITE), **options}
    if machine == "gpu":
        given.setdefault("gpus_per_node", 8)
    run = resolve(Options(machine=machine, **given))
    return run, render(run)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every file, by its path."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mode & 0o777, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class TestSameBytes:
    def test_twice_in_one_process(self) -> None:
        (run, first), (_, second) = rendered(), rendered()
        assert first.archive() == second.archive()
        assert helm_values(run, first) == helm_values(run, second)

    @pytest.mark.rare
    def test_in_two_folders_by_two_processes(self, tmp_path: Path) -> None:
        found = []
        for number, zone in enumerate(("UTC", "Asia/Tokyo")):
            folder = tmp_path / str(number)
            folder.mkdir()
            done = subprocess.run(
                [sys.executable, "-m", "accept", "render", *map(str, CPU), "-o", "out"],
                cwd=folder,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(SOURCE),
                    "PYTHONHASHSEED": str(number),
                    "TZ": zone,
                    "HOME": str(folder),
                    "LANG": ("C", "C.UTF-8")[number],
                },
                umask=(0o022, 0o077)[number],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            found.append(tree(folder / "out"))
        first, second = ({name: data for name, (_, data) in one.items()} for one in found)
        assert first == second
        assert {"run.json", "values.yaml", "rendered/plan.json"} <= set(first)

    def test_as_values_and_as_files(self, tmp_path: Path) -> None:
        assert accept("render", *CPU, "-o", tmp_path / "out").code == 0
        assert accept("render", *CPU).out == (tmp_path / "out/values.yaml").read_text()

    def test_another_input_is_another_run(self) -> None:
        _, first = rendered()
        for options in ({"seed": 2}, {"nodes": 3}, {"nccl": ("NCCL_X=1",)}, {"deadline": 1000.0}):
            assert rendered(**options)[1].plan.hash != first.plan.hash


def unpack(archive: bytes, folder: Path) -> list[tarfile.TarInfo]:
    """Unpack an archive that a node gets, with any Python; return its members."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = tar.getmembers()
        # Without tarfile's filters, which the oldest Python 3.11 does not have.
        for member in members:
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            file = tar.extractfile(member)
            assert file is not None
            target.write_bytes(file.read())
    return members


@functools.cache
def code_archives() -> Mapping[str, bytes]:
    """Return the archives of the code for the nodes, by name."""
    packed = node_code.pack(code())
    return {
        name: packed[name]
        for name in (node_code.COORDINATOR, node_code.PROGRAMS, node_code.BINDINGS)
    }


class TestArchive:
    @pytest.mark.sampled
    @pytest.mark.parametrize("machine", MACHINES)
    @pytest.mark.parametrize("suite", ["quick", "standard", "soak"])
    def test_is_small_sorted_and_timeless(self, machine: str, suite: str, tmp_path: Path) -> None:
        _, bundle = rendered(machine, suite=suite, nodes=64)
        archive = bundle.archive()
        assert len(archive) <= LIMIT
        archives = [archive, *code_archives().values()]
        for members in (unpack(archive, tmp_path) for archive in archives):
            assert [m.name for m in members] == sorted(m.name for m in members)
            assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {
                (0, 0, 0, "", "")
            }
            assert {m.mode for m in members} <= {0o644, 0o755}
            assert all(m.isfile() and not m.name.startswith(("/", "..")) for m in members)

    def test_unpacks_to_all_files(self, tmp_path: Path) -> None:
        _, bundle = rendered()
        members = unpack(bundle.archive(), tmp_path)
        for name in code_archives():
            packed = (tmp_path / name).read_bytes()
            (tmp_path / name).unlink()
            members += unpack(packed, tmp_path)
        found = {name: content for name, (_, content) in tree(tmp_path).items()}
        assert found == bundle.files
        scripts = {m.name for m in members if m.mode == 0o755}
        assert {"kill.sh", "pod_entrypoint.sh", bundle.plan.steps[0].script} <= scripts

    def test_needs_no_unpacking_to_start(self) -> None:
        _, bundle = rendered()
        with tarfile.open(fileobj=io.BytesIO(bundle.archive())) as tar:
            plain = set(tar.getnames())
        assert plain >= {
            "bootstrap_host.sh", "pod_entrypoint.sh", "unpack.sh", "env.sh", "plan.json",
            *(step.script for step in bundle.plan.steps),
        }  # fmt: skip

    def test_of_code_has_the_sources_unmodified(self) -> None:
        _, bundle = rendered()
        core = resources.core()
        assert bundle.files["core/accept/core/plan.py"] == (core / "plan.py").read_bytes()
        program = resources.launchers() / "programs" / "train.py"
        assert bundle.files["programs/train.py"] == program.read_bytes()

    def test_has_the_bindings_of_nvml_that_the_package_requires(self) -> None:
        _, bundle = rendered()
        installed = find_spec("pynvml")
        assert installed is not None
        assert installed.origin is not None
        bindings = bundle.files["programs/bindings/pynvml.py"]
        assert bindings == Path(installed.origin).read_bytes()
        assert b"Redistribution and use in source" in bindings, "the license is part of it"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        wanted = f"{node_code.NVML_PACKAGE}=={node_code.NVML_VERSION}"
        assert wanted in project["project"]["dependencies"]
        assert wanted in project["build-system"]["requires"]

    def test_is_refused_with_other_bindings_of_nvml(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(node_code, "NVML_VERSION", "0.1")
        with pytest.raises(BadInput) as error:
            node_code.read_code(launchers=resources.launchers(), core=resources.core())
        assert error.value.code == Code.RUN_NVML_BINDINGS

    def test_has_private_files_for_their_owner_only(self, tmp_path: Path) -> None:
        _, bundle = rendered()
        members = unpack(bundle.archive({"key": b"secret"}), tmp_path)
        assert [m.name for m in members if m.mode == 0o600] == ["key"]
        assert (tmp_path / "key").read_bytes() == b"secret"

    def test_packs_the_core_into_the_same_bytes_with_every_bzip2(self) -> None:
        """Expect the bytes of bzip2 1.0.8, which do not depend on the machine."""
        text = "\n".join(str(number * number) for number in range(20_000)).encode()
        digest = hashlib.sha256(bz2.compress(text)).hexdigest()
        assert digest == "dd6a4384e9b35f6df2f3ad442709e91c82694bad0eab188dc0e1d915a6e916e9"

    def test_contains_every_file_that_its_steps_name(self) -> None:
        _, bundle = rendered()
        for step in bundle.plan.steps:
            assert step.script in bundle.files
        text = b"".join(c for n, c in bundle.files.items() if n.endswith(".sh")).decode()
        for program_file in (resources.launchers() / "programs").glob("*.*"):
            assert f"programs/{program_file.name}" in bundle.files
        for name in ("lib.sh", "env.sh", "rank.sh", "kill.sh", "interface.sh"):
            assert name in bundle.files
            assert name in text

    def test_the_core_in_it_runs_by_itself(self, tmp_path: Path) -> None:
        for archive in code_archives().values():
            unpack(archive, tmp_path)
        script = (
            "import accept.core.runner.coordinator as c; from accept.core import checks; "
            "print(c.__file__, *checks.REGISTRY)"
        )
        done = run_program(
            [sys.executable, "-S", "-c", script], env={"PYTHONPATH": str(tmp_path / "core")}
        )
        assert done.returncode == 0, done.stderr
        file, *found = done.stdout.split()
        assert file.startswith(str(tmp_path))
        assert found == list(checks.REGISTRY)


class TestNothingOfThisMachine:
    @pytest.mark.parametrize("machine", MACHINES)
    def test_is_in_the_rendered_files(self, machine: str) -> None:
        run, bundle = rendered(machine)
        values = helm_values(run, bundle).encode()
        here = (str(SOURCE.parent), socket.gethostname(), str(Path.home()), getpass.getuser())
        # Short ones may be ordinary words, which say nothing about a machine.
        for word in (word for word in here if len(word) > 6):
            for name, content in {**bundle.files, "values.yaml": values}.items():
                assert word.encode() not in content, f"{word} in {name}"

    def test_no_key_is_in_it(self) -> None:
        run, bundle = rendered()
        for content in (*bundle.files.values(), helm_values(run, bundle).encode()):
            assert not keys.PRIVATE.search(content)

    def test_a_path_of_the_users_files_is_not_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "site.yaml").write_text("name: ours\n")
        run, bundle = rendered(site=str(tmp_path / "site.yaml"), hosts=("a", "b"))
        for content in (*bundle.files.values(), helm_values(run, bundle).encode()):
            assert str(tmp_path).encode() not in content


class TestValues:
    def test_hold_the_plan_and_the_scripts_as_text(self) -> None:
        run, bundle = rendered("a4-highgpu-8g", nodes=64)
        values = yaml.safe_load(helm_values(run, bundle))
        assert read(Plan, json.loads(values["plan"])) == bundle.plan
        scripts = {name: text.encode() for name, text in values["launcher"]["scripts"].items()}
        others = {*code(), "plan.json", "settings.sh"}
        assert scripts == {
            name: content for name, content in bundle.files.items() if name not in others
        }
        assert values["accept"]["run"] == bundle.plan.hash
        assert (values["nodes"], values["gpusPerNode"], values["attempt"]) == (64, 8, "")

    def test_show_the_origin_of_each_setting_of_nccl(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        site.write_text("kubernetes: {image: a}\nnccl: {profile: written, env: {NCCL_IB_TC: 7}}\n")
        run, bundle = rendered("a4-highgpu-8g", site=str(site), nccl=("NCCL_PROTO=a #b",))
        text = helm_values(run, bundle)
        lines = text.partition("\nlauncher:\n")[2].partition("  scripts:\n")[0].splitlines()
        assert "    NCCL_IB_TC: '7'  # site file, nccl.env" in lines
        assert "    NCCL_NET: gIB  # profile written of a4-highgpu-8g" in lines
        assert "    NCCL_PROTO: 'a #b'  # --nccl" in lines
        env = yaml.safe_load(text)["launcher"]["env"]
        assert env == bundle.plan.env
        assert len([line for line in lines if line.startswith("    ")]) == len(env)

    def test_that_are_too_large_are_refused(self, tmp_path: Path) -> None:
        script = tmp_path / "own.sh"
        script.write_text("#!/bin/sh\n" + "# long\n" * 10_000)
        suite = tmp_path / "own.yaml"
        suite.write_text(
            "name: own\ndescription: own\nchecks:\n"
            "- {check: script, script: own.sh, params: {name: a}}\n"
        )
        refused("render", *CPU, "-s", suite, error=Code.HELM_TOO_LARGE)

    def test_are_the_same_data_as_json(self) -> None:
        run, bundle = rendered()
        assert yaml.safe_load(helm_values(run, bundle)) == dump(values_of(run, bundle))
        done = accept("render", *CPU, "-s", "standard", "--json")
        assert json.loads(done.out) == dump(values_of(run, bundle))

    @pytest.mark.parametrize(
        "text", ["#!/bin/sh\n\techo 'ä'  \n\n", " x", "a\rb", "a\nb", "a\n\n", "\x7f"]
    )
    def test_keep_every_script_byte_for_byte(self, text: str) -> None:
        run, bundle = rendered()
        bundle = replace(bundle, files={**bundle.files, "steps/9.user": text.encode()})
        dumped = helm_values(run, bundle)
        assert yaml.safe_load(dumped)["launcher"]["scripts"]["steps/9.user"] == text
        # Helm refuses an end of the document there, which PyYAML ignores.
        assert "..." not in map(str.strip, dumped.splitlines())

    @pytest.mark.parametrize("nodes", [8, 64, 1000])
    @pytest.mark.parametrize("suite", ["quick", "soak"])
    def test_are_small_at_any_size(self, suite: str, nodes: int) -> None:
        run, bundle = rendered("a4-highgpu-8g", suite=suite, nodes=nodes)
        assert len(helm_values(run, bundle)) <= VALUES_LIMIT

    def test_leave_room_for_a_site_on_the_machine_with_most_bounds(self) -> None:
        run, bundle = rendered("gb200-4x", nodes=64)
        assert len(helm_values(run, bundle)) <= VALUES_LIMIT - 3_500


def _statements(source: bytes) -> str:
    """Return the syntax tree of a Python module with its lines, without texts that do nothing."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.end_lineno = node.end_col_offset = 0
            node.value = ast.Constant("")
        for name in ("end_lineno", "end_col_offset"):
            # A block may end with such a text.
            setattr(node, name, None)
    return ast.dump(tree, include_attributes=True)


class TestChartFolder:
    @pytest.fixture(autouse=True)
    def build(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """Build into an empty folder."""
        folder = tmp_path / "build"
        monkeypatch.setattr(resources, "build", lambda: folder)
        return folder

    def test_has_the_sources_of_the_chart_and_the_code(self) -> None:
        found = {name: content for name, (_, content) in tree(chart_folder()).items()}
        sources = {name: content for name, (_, content) in tree(resources.chart()).items()}
        assert found == {**sources, **node_code.chart_files(code())}

    @pytest.mark.rare
    def test_has_the_statements_of_the_code_on_their_lines(self) -> None:
        for name, source in code().items():
            if name.endswith(".py"):
                found = node_code.without_comments(source)
                assert _statements(found) == _statements(source), name
                assert len(found.splitlines()) == len(source.splitlines())

    def test_keeps_licenses_and_no_other_comments(self) -> None:
        source = b'# License\n\nx = """\n# x"""\ndef f():\n    """Do."""\n    # why\n    return 1\n'
        expected = b'# License\n\nx = """\n# x"""\ndef f():\n    ""\n\n    return 1\n'
        assert node_code.without_comments(source) == expected

    @pytest.mark.rare
    def test_is_built_once_by_commands_that_start_at_the_same_time(self, build: Path) -> None:
        with ThreadPoolExecutor(4) as pool:
            folders = set(pool.map(lambda _: chart_folder(), range(4)))
        assert list(build.iterdir()) == list(folders)

    @pytest.mark.rare
    def test_is_another_one_after_a_change_of_the_code(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = chart_folder()
        changed = {**code(), "core/accept/core/new.py": b""}
        monkeypatch.setattr("accept.plan.chart.code", lambda: changed)
        assert chart_folder() != before

    def test_names_a_folder_that_cannot_be_written(self, build: Path) -> None:
        build.write_text("a file")
        with pytest.raises(BadInput) as error:
            chart_folder()
        assert error.value.code == Code.OUTPUT_WRITE


class TestErrors:
    @pytest.mark.parametrize(
        ("args", "code"),
        [
            (["-m", "cpu", "-n", "0"], Code.NODES_NUMBER),
            (["-m", "cpu", "-n", "x"], Code.NODES_SYNTAX),
            (["-m", "cpu", "-n", "\u00b2"], Code.NODES_SYNTAX),
            (["-m", "cpu", "-n", "9" * 5000], Code.NODES_SYNTAX),
            (["-m", "cpu", "-n", str(MOST_HOSTS + 1)], Code.NODES_NUMBER),
            (["-m", "cpu", "-n", "all"], Code.NODES_ALL_OFFLINE),
            (["-m", "cpu", "-n", "2"], Code.SITE_NO_IMAGE),
            (["-m", "cpu", "-n", "@/no/such/file"], Code.HOSTLIST_FILE),
            (["-m", "cpu", "-n", "@"], Code.NODES_SYNTAX),
            (["-m", "cpuu", "-n", "2"], Code.MACHINE_UNKNOWN),
            (["-n", "2"], Code.MACHINE_MISSING),
            (["-m", "cpu", "-n", "2", "--deadline", "soon"], Code.OPTION_DURATION),
            (["-m", "cpu", "-n", "2", "--budget", "0"], Code.OPTION_DURATION),
            (["-m", "cpu", "-n", "2", "--hold", "always"], Code.OPTION_HOLD),
            (["-m", "cpu", "-n", "2", "--hold", "often:5m"], Code.OPTION_HOLD),
            (
                ["-m", "a4-highgpu-8g", "--hosts", "a,b", "--gpus-per-node", "7"],
                Code.GPUS_PER_NODE,
            ),
            ([*CPU, "--set", "all-reduce.max=8X"], Code.PARAM_INVALID),
        ],
    )
    def test_leave_stdout_empty(self, args: list[str], code: Code) -> None:
        done = accept("render", *args)
        assert (done.code, done.out, done.error) == (2, "", code)

    def test_leave_stdout_empty_for_helm_in_a_real_pipe(self) -> None:
        done = program("render", *CPU, "--nccl", "bad")
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err

    def test_a_folder_with_files_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        refused("render", *CPU, "-o", tmp_path, error=Code.OUTPUT_EXISTS)
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_a_file_in_place_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        refused("render", *CPU, "-o", tmp_path / "mine", error=Code.OUTPUT_WRITE)


class TestFolder:
    def folder(self, tmp_path: Path) -> Path:
        assert accept("render", "-m", "cpu", "-n", 1, "-o", tmp_path / "run").code == 0
        return tmp_path / "run"

    def test_nodes_may_be_a_file_with_a_name_a_line(self, tmp_path: Path) -> None:
        (tmp_path / "hosts").write_text("a\nb\n")
        accept("render", "-m", "cpu", "-n", f"@{tmp_path}/hosts", "-o", tmp_path / "run")
        run = json.loads((tmp_path / "run" / "run.json").read_text())["run"]
        assert (run["hosts"], run["backend"], run["plan"]["nodes"]) == (["a", "b"], "ssh", 2)

    def test_the_next_command_is_printed(self, tmp_path: Path) -> None:
        done = accept("render", "-m", "cpu", "-n", 1, "-o", tmp_path / "run")
        assert done.out == f"{tmp_path}/run\n"
        assert f"accept submit {tmp_path}/run" in done.err

    def test_is_what_submit_takes(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        done = accept("submit", folder, "--dry-run")
        assert (done.code, "30-connectivity" in done.out) == (0, True), done.err

    def test_is_read_back_as_it_was_rendered(self, tmp_path: Path) -> None:
        _, bundle = rendered()
        bundle.write(tmp_path)
        assert load_bundle(tmp_path, bundle.plan).archive() == bundle.archive()

    def test_has_a_plan_that_evidence_is_judged_by(self, tmp_path: Path) -> None:
        _, bundle = rendered()
        bundle.write(tmp_path)
        assert evidence.read_plan(tmp_path) == bundle.plan
        path = tmp_path / evidence.PLAN
        path.write_text(path.read_text().replace('"nodes": 2', '"nodes": 1'))
        with pytest.raises(BadEvidence):
            evidence.read_plan(tmp_path)

    @pytest.mark.parametrize(
        "name",
        ["steps/30-connectivity.sh", "env.sh", "programs/train.py", "core/accept/core/plan.py"],
    )
    def test_that_was_edited_is_not_run(self, tmp_path: Path, name: str) -> None:
        folder = self.folder(tmp_path)
        path = folder / "rendered" / name
        path.write_bytes(path.read_bytes() + b"\n# mine\n")
        assert accept("submit", folder, "--dry-run").error == Code.RUN_CHANGED

    def test_that_lacks_or_has_another_file_is_not_run(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        extra = folder / "rendered" / "steps" / "99-mine.sh"
        extra.write_text("true\n")
        assert accept("submit", folder, "--dry-run").error == Code.RUN_CHANGED
        extra.unlink()
        (folder / "rendered" / "kill.sh").unlink()
        assert accept("submit", folder, "--dry-run").error == Code.RUN_CHANGED

    def test_whose_plan_was_edited_is_not_run(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        path = folder / "run.json"
        path.write_text(path.read_text().replace('"deadlineSeconds": 1200', '"deadlineSeconds": 9'))
        assert accept("submit", folder, "--dry-run").error == Code.RUN_CHANGED

    @pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense", "[" * 100_000, "\udcff"])
    def test_an_unreadable_run_is_refused(self, tmp_path: Path, content: str) -> None:
        folder = self.folder(tmp_path)
        (folder / "run.json").write_bytes(content.encode(errors="surrogateescape"))
        refused("submit", folder, "--dry-run", error=Code.RUN_UNREADABLE)

    def test_a_folder_of_another_version_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, bundle = rendered()
        bundle.write(tmp_path)
        monkeypatch.setattr(node_code, "SCRIPTS", ("script-of-a-later-version.sh",))
        with pytest.raises(BadInput) as error:
            load_bundle(tmp_path, bundle.plan)
        assert error.value.code == Code.RUN_OTHER_VERSION

    def test_a_folder_with_another_plan_is_refused(self, tmp_path: Path) -> None:
        run, bundle = rendered()
        bundle.write(tmp_path)
        with pytest.raises(BadInput) as error:
            load_bundle(tmp_path, rendered(nodes=3, suite="quick")[1].plan)
        assert error.value.code is Code.RUN_CHANGED
        assert run.plan.nodes == 2


class TestScripts:
    def test_settings_reach_the_environment_quoted(self) -> None:
        _, bundle = rendered(nccl=("NCCL_X=a b'c\"$(x)",))
        done = subprocess.run(
            ["sh", "-c", '. ./env.sh; printf %s "$NCCL_X"'],
            input=b"",
            cwd=self.written(bundle),
            env={"ACCEPT_DIR": ".", "PATH": os.environ["PATH"]},
            capture_output=True,
            check=False,
        )
        assert done.stdout == b"a b'c\"$(x)", done.stderr

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.place = tmp_path

    def written(self, bundle: Bundle) -> Path:
        bundle.write(self.place)
        return self.place

    def test_tools_of_the_site_come_first(self) -> None:
        (self.place / "site.yaml").write_text(
            "tools: {venv: /opt/v, mpirun: /opt/mpi/bin/mpirun, ncclTests: /opt/nt}\n"
        )
        _, bundle = rendered(site=str(self.place / "site.yaml"), hosts=("a", "b"))
        done = run_program(
            [
                "sh",
                "-c",
                '. ./env.sh; echo "$PATH"; echo "$ACCEPT_PYTHON"; echo "$ACCEPT_NCCL_TESTS"',
            ],
            cwd=self.written(bundle),
            env={"ACCEPT_DIR": ".", "PATH": "/usr/bin:/bin"},
        )
        path, python, nccl_tests = done.stdout.splitlines()
        assert path.split(":")[:2] == ["/opt/mpi/bin", "/opt/v/bin"]
        assert (python, nccl_tests) == ("/opt/v/bin/python", "/opt/nt")
