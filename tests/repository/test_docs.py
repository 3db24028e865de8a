"""The pages for users: commands exist, examples work, and tables are complete."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.site.commands import reference
from tests.factories import cloudbuild, dockerfile
from tests.factories.command_line import SOURCE, accept, parsers
from tests.factories.doc_examples import CODE_BLOCK, examples
from tests.factories.paths import ROOT

from accept import config
from accept.config.extras import Extra
from accept.config.resources import core, launchers
from accept.config.suite import SuiteCheck
from accept.core import causes, evidence
from accept.core.catalog.faults import FAULTS
from accept.core.checks import REGISTRY
from accept.core.errors import Exit
from accept.core.judge.health_rules import APPLICATION_XIDS, LEVELS, RULES
from accept.core.plan import GroupKind
from accept.core.serde import camel
from accept.core.verdict import State
from accept.evidence import rundir
from accept.evidence.untrusted import Limits
from accept.plan import node_code

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "docker" / "README.md"])
MAKEFILE = (ROOT / "Makefile").read_text()


#: Programs other than `accept` and make in the commands that are shown.
PROGRAMS = {
    ".tools/bin/uv", "accept-mpirun", "cosign", "cp", "crane", "docker", "gcloud", "gh", "grep",
    "gsutil", "helm", "kubectl", "ls", "pipx", "printf", "sh", "sha256sum", "skopeo",
    "ssh-keygen", "tar",
}  # fmt: skip
#: Programs that may get `accept` as a name of something else, such as a container.
OTHERS = ("gcloud", "kubectl")


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def commands(text: str) -> list[str]:
    """Return the commands of a page: lines after `$` in console blocks, and inline `accept …`."""
    blocks = CODE_BLOCK.findall(text)
    shown = [
        line[2:]
        for kind, _, block in blocks
        if kind == "console"
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    lines = CODE_BLOCK.sub("", text)
    return shown + [span for span in re.findall(r"`([^`\n]+)`", lines) if re.match("accept ", span)]


def rows(page: str, first: str) -> list[str]:
    """Return the first cells, as text, of the table whose first heading is `first`."""
    _, _, table = text_of(page).partition(f"\n| {first} |")
    cells = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    found = (re.findall(r"`([^`]+)`", cell) or [cell.strip()] for cell in cells)
    return [text for texts in found for text in texts]


#: The text of each page, and what the site adds to one of them.
TEXTS = {
    **{str(page.relative_to(ROOT)): page.read_text() for page in PAGES},
    "docs/site/commands.py": reference(),
}


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_is_commands_output_data_or_a_file(page: str) -> None:
    """Commands in a block of another kind would not be tested."""
    opening = re.findall(r"^ *```(?=.)(.*)$", TEXTS[page], re.MULTILINE)
    kinds = {line for line in opening if not re.fullmatch(r"console|text|(sh|yaml) \S+|yaml", line)}
    assert kinds <= {"{toctree}"}
    assert TEXTS[page].count("```") == 2 * len(opening)


def parsed(words: list[str]) -> None:
    """Parse the words after `accept` without running them. Raise like the command line."""
    group = parsers()
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version", "--install-completion", "--show-completion")
        return
    command: Any = group.commands.get(words[0])
    assert command, f"there is no command {words[0]}"
    if "--help" not in words:
        command.make_context(words[0], words[1:])


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_that_is_shown_exists_with_its_options(page: str) -> None:
    for text in dict.fromkeys(commands(TEXTS[page])):
        print(text)
        exists(text)


def exists(text: str) -> None:
    """Check a command that a page shows: its program, its words and its options."""
    words = shlex.split(text.partition(" > ")[0].partition(" | ")[0], comments=True)
    while re.match("[A-Z_]+=", words[0]):
        del words[0]
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word and word != "make"]
        assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)
    elif words[0] == "gpu-accept":
        parsed(words[1:])
    elif "accept" in words and words[0] not in OTHERS:
        parsed(words[words.index("accept") + 1 :])
    else:
        assert words[0] in PROGRAMS
        # All that docker and Cloud Build are given exists in their files.
        for word in words:
            name, _, value = word.partition("=")
            if name == "--config":
                assert (ROOT / value).is_file()
            if name == "--substitutions":
                # gcloud's own way to name another separator than a comma: `gcloud topic escaping`.
                separator = value[1] if value.startswith("^") else ","
                pairs = value.removeprefix(f"^{separator}^").split(separator)
                given = {pair.partition("=")[0] for pair in pairs}
                assert given <= set(cloudbuild.document()["substitutions"])
        arguments = {v.partition("=")[0] for k, v in pairwise(words) if k == "--build-arg"}
        stages = {v for k, v in pairwise(words) if k == "--target"}
        assert arguments <= set(dockerfile.arguments())
        assert stages <= set(dockerfile.stages())


#: Commands that need no cluster, no hosts and no run.
ALONE = {"render", "drill", "list", "show", "chart", "help"}


def help_examples() -> list[str]:
    """Return the examples of the commands in ALONE, from their help and from the help of all."""
    group = parsers()
    # In the help of all the commands are a column. The values for Helm need an image.
    shown = re.findall(r"^  (accept \S.*?)  ", accept("help", "all").out, re.MULTILINE)
    shown = [text for text in shown if "COMMAND" not in text and "render" not in text]
    for name in ALONE:
        _, _, text = (group.commands[name].help or "").partition(": accept ")
        shown += re.split(r"[;,] (?=accept|helm)", f"accept {text.strip()}")
    return sorted(
        {
            text
            for text in shown
            if text.startswith("accept ") and text.split()[1] in ALONE and "--hosts" not in text
        }
    )


def test_every_command_that_needs_nothing_has_an_example() -> None:
    assert {text.split()[1] for text in help_examples()} == ALONE


@pytest.mark.parametrize("text", help_examples())
def test_an_example_of_the_help_works_as_typed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    done = accept(*shlex.split(text)[1:])
    assert done.code == 0, done.err
    assert done.out


class TestParameters:
    """A page names a parameter as `--set` takes it."""

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_that_are_set_exist(self, page: Path) -> None:
        set_ = re.findall(r"--set ([a-z0-9-]+)\.(\w+)=", page.read_text())
        unknown = [
            (check, name)
            for check, name in set_
            if check in REGISTRY
            and name
            not in {camel(item.name) for item in dataclasses.fields(REGISTRY[check].params)}
        ]
        assert unknown == []

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_are_never_written_as_in_the_code(self, page: Path) -> None:
        fields = {
            item.name for one in REGISTRY for item in dataclasses.fields(REGISTRY[one].params)
        }
        inside = {name for name in fields if camel(name) != name}
        assert [name for name in sorted(inside) if f"`{name}`" in page.read_text()] == []

    def test_of_training_are_all_in_its_table(self) -> None:
        known = {camel(item.name) for item in dataclasses.fields(REGISTRY["train"].params)}
        first = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text_of("docs/train.md"), re.MULTILINE)
        shown = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
        assert known <= shown


def test_no_page_and_no_hint_installs_from_an_index() -> None:
    """The package is in no index, so its name there may belong to someone else."""
    files = [*PAGES, *(ROOT / "docker").glob("*.md"), *(ROOT / "cli").rglob("*.py")]
    assert [path for path in files if re.search(r"install '?gpu-accept", path.read_text())] == []


def test_the_page_on_installing_names_every_extra() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = set(project["optional-dependencies"])
    assert set(rows("docs/install.md", "extra")) == extras == {extra.value for extra in Extra}


def test_the_page_on_drills_lists_every_fault_and_its_causes() -> None:
    row = re.compile(r"^\| `([a-z-]+)` \| .* \| (.*) \| .* \|$", re.MULTILINE)
    shown = row.findall(text_of("docs/drill.md"))
    assert [name for name, _ in shown] == [*FAULTS]
    for name, text in shown:
        words = set(re.findall(r"`([^`]+)`", text))
        assert (FAULTS["slow"].causes if words == {"slow"} else words) == FAULTS[name].causes
        assert FAULTS[name].causes <= {*causes.Cause}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_tutorial_ends_with_what_next(page: Path) -> None:
    if page.parent.name == "tutorials":
        assert re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)[-1] == "What next"


class TestReadme:
    def test_begins_with_the_demo_and_the_two_commands(self) -> None:
        blocks = CODE_BLOCK.findall(text_of("README.md"))
        shown = [block for kind, _, block in blocks if kind == "console"]
        assert shown[:2] == ["$ make demo\n", "$ make run\n$ make test\n"]

    def test_has_at_most_120_lines_and_three_commands_for_each_kind_of_nodes(self) -> None:
        text = text_of("README.md")
        assert len(text.splitlines()) <= 120
        nodes = text.partition("\n## Your nodes\n")[2].partition("\n## ")[0]
        assert [block.count("\n") for _, _, block in CODE_BLOCK.findall(nodes)] == [3, 3, 3]

    def test_admits_what_never_ran(self) -> None:
        assert "has run on single H100 and H200 GPUs only" in text_of("README.md")
        matrix = text_of("docs/reliability.md").partition("\n## What ran on what\n")[2]
        assert all(
            row.endswith(("| no |", "| |"))
            for row in matrix.partition("\n## ")[0].splitlines()[3:]
            if row.startswith("|") and not row.startswith(("| one machine |", "| ssh |"))
        )


def test_the_pages_name_every_exit_code_every_state_and_the_folder_of_runs() -> None:
    page = "docs/reference/exit-codes.md"
    assert [int(code) for code in rows(page, "exit")] == [int(code) for code in Exit]
    assert set(rows(page, "state")) == {state.value for state in State}
    assert "/.local/state/accept/runs" in text_of("docs/command-line.md")


class TestSuites:
    def test_names_every_key_and_every_kind_of_groups(self) -> None:
        keys = {camel(item.name) for item in dataclasses.fields(SuiteCheck)}
        assert set(rows("docs/suites.md", "key")) == keys
        assert rows("docs/suites.md", "groups") == list(GroupKind)

    def test_its_example_is_a_suite(self, tmp_path: Path) -> None:
        for name, content in examples("docs/suites.md").items():
            (tmp_path / name).write_text(content)
        suite = config.load_suite(str(tmp_path / "own.yaml")).value
        assert {entry.check for entry in suite.checks} <= set(REGISTRY)
        assert {entry.script for entry in suite.checks if entry.script} == {"disk.sh"}

    @pytest.mark.real
    def test_its_script_runs_as_a_check(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        beside = Path(sys.executable).parent
        if not (shutil.which("mpirun", path=beside) and find_spec("mpi4py")):
            pytest.skip("no Open MPI and mpi4py beside this Python: the extra `run`")
        files = examples("docs/suites.md")
        suite = yaml.safe_load(files["own.yaml"])
        suite["checks"] = [entry for entry in suite["checks"] if entry["check"] == "script"]
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(suite))
        (tmp_path / "disk.sh").write_text(files["disk.sh"])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
        monkeypatch.setenv("PYTHONPATH", str(SOURCE))
        (command,) = [text for text in commands(text_of("docs/suites.md")) if "--expect" in text]
        done = accept(*shlex.split(command)[1:])
        assert done.code == 0, done.out
        assert "free" in done.out


class TestSsh:
    def test_its_example_is_a_site(self, tmp_path: Path) -> None:
        (tmp_path / "site.yaml").write_text(examples("docs/ssh.md")["site.yaml"])
        assert config.load_site(str(tmp_path / "site.yaml")).value.tools.venv == "/opt/accept/venv"

    @pytest.mark.parametrize("page", ["docs/ssh.md", "docs/slurm.md"])
    def test_examples_of_containers_are_sites(self, page: str, tmp_path: Path) -> None:
        (tmp_path / "site.yaml").write_text(examples(page)["containers.yaml"])
        assert config.load_site(str(tmp_path / "site.yaml")).value.container.image


class TestKubernetes:
    @pytest.mark.parametrize(
        ("page", "name"),
        [
            ("kubernetes", "site.yaml"),
            ("kubernetes", "separate.yaml"),
            ("kubernetes-rights", "rights.yaml"),
        ],
    )
    def test_its_examples_are_sites_that_render(self, tmp_path: Path, page: str, name: str) -> None:
        (tmp_path / "site.yaml").write_text(examples(f"docs/{page}.md")[name])
        done = accept("render", "-m", "cpu", "-n", 2, "--site", tmp_path / "site.yaml")
        notes = [line for line in done.err.splitlines() if "next: " not in line]
        # The only note is about the sizes.
        assert (done.code, len(notes)) == (0, 1), done.err

    def test_its_example_for_egress_is_for_the_pods_of_runs(self) -> None:
        policy = yaml.safe_load(examples("docs/kubernetes-rights.md")["egress.yaml"])
        ours = policy["spec"]["podSelector"]["matchLabels"]
        assert policy["spec"]["egress"][0]["to"] == [{"podSelector": {"matchLabels": ours}}]
        labels = text_of("chart/templates/_helpers.tpl")
        assert all(f"{name}: {value}" in labels for name, value in ours.items())


class TestInsideAPod:
    PAGE = text_of("docs/inside-a-pod.md")

    def test_its_programs_are_on_every_node(self) -> None:
        shown = re.findall(r"(?:accept|DIR)/((?:bin|programs)/[a-z.-]+)", self.PAGE)
        assert set(shown) - node_code.read_code(launchers=launchers(), core=core()).keys() == set()

    def test_its_scripts_are_valid_sh(self) -> None:
        for script in examples("docs/inside-a-pod.md").values():
            subprocess.run(["sh", "-n", "-c", script], check=True)


class TestEvidence:
    def test_names_every_file_that_is_left(self) -> None:
        named = " ".join(rows("docs/evidence.md", "file"))
        files = (evidence.PLAN, evidence.RECORDS, evidence.VERDICT, evidence.REPORT, evidence.JUNIT)
        more = (evidence.RUN_END, evidence.CONSOLE, evidence.CHECKSUMS, f"{evidence.LOGS}/")
        for name in (*files, *more):
            assert name in named
        assert rundir.EVIDENCE in text_of("docs/evidence.md")

    def test_names_the_limits_of_what_others_sent(self) -> None:
        limits = Limits()
        named = dict(
            re.findall(r"^\| ([\d,]+(?: GiB)?) \| (\w+)", text_of("docs/evidence.md"), re.M)
        )
        assert named == {
            f"{limits.files:,}": "files",
            str(limits.folders): "levels",
            str(limits.archives): "archives",
            f"{limits.total >> 30} GiB": "bytes",
            str(limits.ratio): "size",
        }


class TestHealth:
    PAGE = text_of("docs/health.md")

    @pytest.mark.parametrize("counter", RULES)
    def test_every_judged_counter_is_listed_with_its_cause(self, counter: str) -> None:
        rows = [line for line in self.PAGE.splitlines() if f"`{counter}`" in line]
        assert any(f"`{RULES[counter].cause}`" in row for row in rows)

    @pytest.mark.parametrize("cause", sorted({rule.cause for rule in LEVELS.values()}))
    def test_every_cause_of_a_lost_level_is_listed(self, cause: str) -> None:
        assert f"`{cause}`" in self.PAGE

    def test_every_limit_is_listed(self) -> None:
        limits = [camel(item.name) for item in dataclasses.fields(REGISTRY["health"].params)]
        assert [name for name in limits if f"`{name}`" not in self.PAGE] == []

    def test_every_xid_that_is_only_noted_is_listed(self) -> None:
        assert ", ".join(map(str, sorted(APPLICATION_XIDS))) in self.PAGE


class TestCauses:
    def test_every_cause_has_a_section_and_every_section_a_cause(self) -> None:
        sections = re.findall(r"^### (\S+)$", text_of("docs/causes.md"), re.MULTILINE)
        assert sorted(sections) == sorted(causes.Cause)
