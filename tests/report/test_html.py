"""The report as a page: complete, the same bytes each time, and inert for any name of a host."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.browser import PROGRAM, browser
from tests.factories.judging import judged
from tests.factories.reported_runs import CASES, page, reported
from tests.factories.verdicts import FLOOR, GPU, gpus, hosts_record, inventory_of, plan, step

from accept.core.judge.suspects import HOSTS_STEP
from accept.core.plan import SIMULATED, BoundKind
from accept.core.records import Fact, Metric, Record
from accept.core.report import text as report_text
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.verdict import State
from accept.report.certificate import certificate
from accept.report.data import Run
from accept.report.gpu_grid import gpu_grids
from accept.report.html import render_html
from accept.report.pair_matrix import pair_matrix
from accept.report.strip_plot import strip_plots
from accept.report.svg import Tone, tone_of
from accept.report.tables import bad_executions, coverage_rows, gaps


class Outline(HTMLParser):
    """Collect the tags of a page, and texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.classes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.classes += (dict(attrs).get("class") or "").split()


def test_the_same_run_gives_the_same_bytes() -> None:
    assert render_html(reported("node")) == page("node")


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_a_page_loads_nothing_and_has_one_script_of_its_own(name: str) -> None:
    tags = Outline(page(name)).tags
    assert [tag for tag, _ in tags].count("script") == 1
    assert not {tag for tag, _ in tags} & {"img", "link", "iframe", "object", "base", "form"}
    names = {key for _, attributes in tags for key in attributes}
    assert not [key for key in names if key.startswith("on") or key in ("style", "src", "srcset")]
    links = [attributes["href"] or "" for tag, attributes in tags if tag == "a"]
    ids = {attributes.get("id") for _, attributes in tags}
    assert [link for link in links if link.removeprefix("#") not in ids] == []


@pytest.mark.rare
def test_a_page_of_many_nodes_stays_small() -> None:
    assert 40_000 < len(page("node").encode()) < 400_000
    assert 40_000 < len(page("1024").encode()) < 400_000


def test_sections_are_in_the_order_of_questions() -> None:
    sections = re.findall(r'<section id="(\w+)"', page("node"))
    assert sections == [
        *("bad", "suspects", "nodes", "pairs", "rails", "gpus", "sizes", "time"),
        *("checks", "health", "drift", "coverage", "gaps", "about", "sources"),
    ]


def test_ranks_without_gpus_are_not_called_gpus() -> None:
    run = reported("node")
    text = render_html(replace(run, verdict=replace(run.verdict, gpu_tested=False)))
    section = text.partition('<section id="gpus">')[2].partition("</section>")[0]
    assert "<h2>Each rank</h2>" in section
    assert re.search(r"median [^<]* ranks", section)


def test_values_without_a_measurement_have_a_color_of_their_own() -> None:
    run = reported("node")
    grids, _ = gpu_grids(run)
    assert grids
    assert all(Tone.MISSING in one.cells.tones for one in grids)
    silent = replace(
        run,
        verdict=replace(run.verdict, hosts=(*run.verdict.hosts, "h99")),
    )
    (plot, *_), _ = strip_plots(silent)
    (row,) = (row for row in plot.rows if row.host == "h99")
    assert (row.text, row.dots, row.failed) == ("not measured", {}, "")


def test_values_below_the_required_one_are_never_drawn_as_normal() -> None:
    run = reported("hostile")
    plots, quiet = strip_plots(run)
    below = [s for p in run.populations for s in p.samples if s.value and s.value < (p.bound or 0)]
    assert below
    assert not [s for population in quiet for s in population.samples if s.bad]
    assert all(Tone.BAD in plot.tones for plot in plots)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_the_colors_of_executions_are_those_of_the_judge(name: str) -> None:
    bad = {Tone.SLOW, Tone.BAD, Tone.FAILED}
    for population in reported(name).populations:
        for sample in population.samples:
            assert (tone_of(sample, population) in bad) is sample.bad
            if sample.value and not sample.cause and sample.value >= (population.bound or 0):
                other = sample._replace(bad=not sample.bad)
                assert (tone_of(other, population) in bad) is other.bad


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_each_bad_result_is_listed_with_its_values_before_the_pictures(name: str) -> None:
    run = reported(name)
    rows, more = bad_executions(run)
    bad = [sample for population in run.populations for sample in population.samples if sample.bad]
    assert len(rows) + more == len(bad)
    assert {row.log for row in rows} <= {sample.log for sample in bad}
    shares = [pair for suspect in run.verdict.suspects for pair in suspect.pairs if pair.compared]
    listed = {(frozenset((row.host, row.partner)), row.measured) for row in rows}
    assert more or {(frozenset(pair.hosts), pair.compared) for pair in shares} <= listed
    assert all(row.start > 0 for row in rows)


def test_neighbors_have_a_bracket_and_suspects_a_frame() -> None:
    run = reported("node")
    places = {host: f"row/rack-{i // 16}/{host}" for i, host in enumerate(run.verdict.hosts)}
    facts = tuple(Fact(name="place", value=place, host=host) for host, place in places.items())
    records = (replace(run.records[0], facts=(*run.records[0].facts, *facts)), *run.records[1:])
    matrix = pair_matrix(replace(run, records=records))
    assert matrix is not None
    assert [one.name for one in matrix.brackets] == [f"row/rack-{i}" for i in range(4)]
    # A rectangle for the row of the bad node, and one for its column.
    assert matrix.frames.count("M") == 2


def test_a_simulated_run_is_marked_on_the_first_page_and_on_screen() -> None:
    run = reported("node")
    simulated = replace(run, verdict=replace(run.verdict, suite=SIMULATED))
    assert Outline(render_html(simulated)).classes.count("simulated") == 2
    assert Outline(page("node")).classes.count("simulated") == 0


def test_every_picture_has_a_text_and_every_node_its_values() -> None:
    tags = Outline(page("node")).tags
    pictures = [attributes for tag, attributes in tags if tag == "svg"]
    shown = [one.get("aria-label") for one in pictures if "aria-hidden" not in one]
    assert shown
    assert all(shown)
    assert len(set(shown)) == len(shown)
    (plot, *_), _ = strip_plots(reported("node"))
    assert all(f"<title>{row.host}: {row.text}</title>" in page("node") for row in plot.rows)


@pytest.mark.rare
def test_pairs_are_a_matrix_up_to_128_nodes() -> None:
    matrix = pair_matrix(reported("node"))
    assert matrix is not None
    assert (matrix.pairs, len(matrix.labels)) == (64 * 63 // 2, 64)
    assert pair_matrix(reported("1024")) is None


def test_the_worst_nodes_come_first() -> None:
    for name in ("node", "1024"):
        (plot, *_), _ = strip_plots(reported(name))
        assert plot.rows[0].host == "h17"
    assert len(plot.rows) + plot.rest == 1024


def test_missing_parts_of_a_run_are_always_listed() -> None:
    run = reported("pass")
    assert gaps(run) == ()
    verdict = replace(run.verdict, missing=("h77",), part="4 of the 8 GPUs of each node")
    shown = " ".join(gap.subject for gap in gaps(replace(run, verdict=verdict)))
    assert "h77" in shown
    assert "the rest of each node" in shown
    stopped = replace(run.verdict, interruption="timed out", state=State.NOT_TESTED)
    assert gaps(replace(run, verdict=stopped))[0].subject == "the rest of the run"


def test_nodes_with_the_same_coverage_share_a_row() -> None:
    (row,) = coverage_rows(reported("pass"))
    assert (row.count, row.gaps) == (len(reported("pass").verdict.hosts), ())
    assert row.gpus.startswith("0-7 (8 of 8)")


def test_every_untested_part_of_a_node_has_a_row_and_a_reason() -> None:
    run = reported("pass")
    h1, h2 = run.verdict.hosts[1:3]
    # h1 has only failed executions, and h2 none.
    records = tuple(
        replace(record, exit=1) if h1 in record.hosts else record
        for record in run.records
        if h2 not in record.hosts or record.step == HOSTS_STEP
    )
    verdict = replace(run.verdict, missing=("h77",))
    rows = {row.hosts: row for row in coverage_rows(replace(run, records=records, verdict=verdict))}
    assert rows["h77"].gaps[0].startswith("everything")
    assert "GPU 0-7: all its executions failed" in rows[h1].gaps
    assert "GPU 0-7: no step used it" in rows[h2].gaps
    assert rows[h1].gpus == rows[h2].gpus == "- (0 of 8)"


def test_the_certificate_names_nodes_and_gpus_by_their_serial_numbers() -> None:
    run = reported("pass")
    fact = inventory_of("h1", serial="SN-1", gpus=gpus("h1", 2, serial="1652"))
    reported_by_h1 = replace(hosts_record(("h1",)), facts=(fact,))
    nodes = {n.host: n for n in certificate(replace(run, records=(reported_by_h1,))).nodes}
    assert nodes["h1"].serial == "SN-1"
    assert nodes["h1"].gpus == ("GPU-h1-0 (1652)", "GPU-h1-1")
    assert nodes["h2"].gpus == ()


def test_the_certificate_has_the_hash_of_what_the_user_expects() -> None:
    run = reported("pass")
    mine = replace(run.plan.references[0], kind=BoundKind.EXPECTATION)
    hashes = {
        certificate(replace(run, plan=replace(run.plan, references=references))).expectations_hash
        for references in (
            (),
            (mine,),
            (replace(mine, source="elsewhere"),),
            (replace(mine, lower=1.0),),
        )
    }
    assert len(hashes) == 3
    assert "" in hashes


@pytest.mark.cluster
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the Debian package chromium")
def test_pages_work_in_a_browser(tmp_path: Path) -> None:
    with browser() as tab:
        for name in CASES:
            path = tmp_path / f"{name}.html"
            path.write_text(page(name), encoding="utf-8")
            assert tab.open(path) == [], name
            for width in (1100, 390):
                tab.resize(width, 800)
                # Only scrollable elements may contain anything wider than the window.
                assert tab.run("document.documentElement.scrollWidth <= innerWidth"), name
            assert tab.run("document.querySelectorAll('h1').length") == 2, name
        (tmp_path / "32.html").write_text(page("32"), encoding="utf-8")
        tab.open(tmp_path / "32.html")
        assert tab.pages() <= 5
        tab.open(tmp_path / "node.html")
        tab.run("document.getElementById('find').value = 'h17'")
        tab.run("document.getElementById('find').dispatchEvent(new Event('input'))")
        assert tab.run(
            "[...document.querySelectorAll('.mark')].every(e => e.dataset.host == 'h17')"
        )
        assert tab.run("document.querySelectorAll('.mark').length") > 2
        tab.run("document.querySelector('#checks th button').focus()")
        tab.run("document.activeElement.click()")
        assert tab.run("document.querySelector('#checks th').ariaSort") == "ascending"
        # The policy itself works: an added script does not run.
        tab.run(
            "document.body.append(Object.assign(document.createElement('script'),"
            "{textContent: 'window.owned = 1'}))"
        )
        assert tab.run("window.owned") is None


@pytest.mark.cluster
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the Debian package chromium")
def test_pages_show_the_same_without_javascript(tmp_path: Path) -> None:
    parts = "[...document.querySelectorAll('h1, h2, p:not(:has(input)), td, text')]"
    with browser() as tab:
        for name in CASES:
            path = tmp_path / f"{name}.html"
            path.write_text(page(name), encoding="utf-8")
            texts = []
            for disabled in (False, True):
                tab.call("Emulation.setScriptExecutionDisabled", value=disabled)
                assert tab.open(path) == [], name
                # Of SVG, which has no `innerText`, all text; elsewhere, only text that is shown.
                texts.append(tab.run(f"{parts}.map(e => e.innerText ?? e.textContent)"))
            assert texts[0] == texts[1], name


ANY = st.text(max_size=12)
ODD = st.floats() | st.sampled_from([1.0, 380.0, 1e300, -1.0])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | ODD | ANY,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ANY, inner, max_size=3),
    max_leaves=6,
)
METRICS = st.builds(
    Metric,
    check=st.sampled_from(["all-reduce", "gemm", "latency", "other"]),
    name=st.sampled_from(["busbw", "time", "bf16", "wrong", "x"]),
    value=ODD,
    unit=ANY,
    size=st.none() | st.integers(-1, 1 << 40),
    host=st.none() | st.sampled_from(["h0", "h99"]),
    rank=st.none() | st.integers(-1, 1 << 20),
)
FACTS = st.builds(
    Fact,
    name=st.sampled_from(["inventory", "health-change", "health-total", "load", "gpus", "place"]),
    value=VALUES,
    host=st.none() | st.sampled_from(["h0", "h1"]),
    rank=st.none() | st.integers(-1, 1 << 20),
)
RECORDS = st.builds(
    Record,
    step=st.sampled_from(["00-hosts", "20-all-reduce-pairs", "30-all-reduce-rails", "x"]),
    checks=st.just(("all-reduce",)),
    wave=st.integers(-1, 1 << 40),
    group=st.integers(0, 2),
    hosts=st.lists(st.sampled_from(["h0", "h1", "h2", "h3"]), max_size=2).map(tuple),
    local_ranks=st.lists(st.integers(-1, 9), max_size=2).map(tuple),
    exit=st.none() | st.integers(0, 1),
    start=ODD,
    began=st.none() | ODD,
    end=ODD,
    metrics=st.lists(METRICS, max_size=4).map(tuple),
    facts=st.lists(FACTS, max_size=2).map(tuple),
)


@given(st.lists(RECORDS, max_size=8))
@settings(max_examples=60)
def test_damaged_records_never_prevent_a_report(records: list[Record]) -> None:
    pairs = step("all-reduce", "pairs", rounds=1, number=20)
    rails = step("all-reduce", "rails", number=30)
    planned = plan(pairs, rails, machine=GPU, references=(FLOOR,))
    every = (hosts_record(("h0", "h1", "h2", "h3")), *records)
    verdict = judged(planned, *every)
    text = render_html(Run(plan=planned, verdict=verdict, records=every))
    assert not {c for c in text if unicodedata.category(c)[0] == "C"} - {"\n"}
    assert len(report_text.table(verdict).splitlines()) <= report_text.MOST_LINES
    junit(verdict, every)
    render_markdown(verdict, planned, every)
