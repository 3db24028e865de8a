"""The parts of train.py that need no ranks: comparing, timing, models, data sets, checkpoints."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.ports import free_port
from tests.factories.programs import records_of

import train
from rank_io import Identity, Injected, Progress, Rank, Unusable
from train import END, GO_ON, LEAST_STEPS, LOOK_SECONDS, Clock
from train_compare import NAMED, Replica, accuse, deviation, reference_of, went_wrong
from train_compare import settings as settings_of
from train_times import Split, Summary, Windows, summary

real = pytest.mark.real

FAIR = Replica(samples=1, parameters=2, gradient=3, length=10.0, sum=4.0)


@pytest.fixture(scope="module")
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.set_num_threads(1)
    return found


# -- who is odd ----------------------------------------------------------------------------------


def accused(
    ranks: dict[int, Replica],
    *,
    of: int = 8,
    repeats: tuple[int, ...] = (),
    devices: list[str] | None = None,
) -> set[tuple[str, tuple[int, ...]]]:
    """Return the accused ranks if `ranks` got other results, and `repeats` do not repeat theirs."""
    replicas = [ranks.get(rank, FAIR) for rank in range(of)]
    steady = [rank not in repeats for rank in range(of)]
    found = accuse(replicas, devices or ["one"] * of, steady, 1e-3)
    return {(one.cause, one.ranks) for one in found}


@given(st.integers(3, 40), st.data())
def test_one_rank_with_another_bit_is_named_and_fair_ones_never_are(
    ranks: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, ranks - 1))
    field = data.draw(st.sampled_from(["samples", "parameters", "gradient"]))
    cause = {"samples": "wrong-data", "parameters": "parameters-differ"}
    found = accused({bad: FAIR._replace(**{field: 9})}, of=ranks)
    assert found == {(cause.get(field, "gradients-differ"), (bad,))}
    assert accused({}, of=ranks) == set()


def test_without_a_majority_nobody_is_named() -> None:
    assert accused({1: FAIR._replace(gradient=9)}, of=2) == {("gradients-differ", ())}
    many = {rank: FAIR._replace(gradient=rank + 9) for rank in range(NAMED + 1)}
    assert accused(many, of=3 * NAMED) == {("gradients-differ", ())}


def test_other_parameters_explain_another_gradient() -> None:
    other = FAIR._replace(parameters=9, gradient=9)
    assert accused({3: other}) == {("parameters-differ", (3,))}


def test_kernels_that_add_in_any_order_are_compared_within_a_tolerance() -> None:
    everyone = tuple(range(8))
    near = {rank: FAIR._replace(gradient=rank, length=10.0 + rank / 1e4) for rank in everyone}
    assert accused(near, repeats=everyone) == set()
    near[5] = near[5]._replace(sum=4.5)
    assert accused(near, repeats=everyone) == {("gradients-differ", (5,))}
    near[5] = near[5]._replace(sum=float("nan"))
    assert accused(near, repeats=everyone) == {("gradients-differ", (5,))}


def test_one_rank_that_does_not_repeat_itself_is_broken() -> None:
    found = accused({2: FAIR._replace(gradient=9)}, repeats=(2,))
    assert found == {("gradients-differ", (2,))}


def test_devices_of_different_kinds_need_not_agree_in_every_bit() -> None:
    kinds = ["one"] * 4 + ["other"] * 4
    others = {rank: FAIR._replace(gradient=9) for rank in range(4, 8)}
    assert accused(others, devices=kinds) == set()
    others[6] = FAIR._replace(gradient=8)
    assert accused(others, devices=kinds) == {("gradients-differ", (6,))}


def test_the_first_rank_that_is_not_finite_is_named_unless_all_are_at_once() -> None:
    assert went_wrong([-1, -1]) is None
    first = went_wrong([8, 61, -1])
    assert first is not None
    assert (first.cause, first.ranks) == ("not-finite", (0,))
    assert first.seen.startswith("loss not finite at step 4")
    everyone = went_wrong([61, 61])
    assert everyone is not None
    assert everyone.ranks == ()
    assert "gradient" in everyone.seen


@real
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_single_flipped_bit_changes_the_digest(torch: Any, data: st.DataObject) -> None:
    from train_compare import Digests

    kind = data.draw(st.sampled_from(["float32", "bfloat16", "int64"]))
    tensors = [torch.zeros(size, dtype=getattr(torch, kind)) for size in (3, 300_000)]
    digests = Digests("cpu")
    before = int(digests.digest(tensors))
    bits = tensors[1].view(
        {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensors[1].element_size()]
    )
    at, bit = data.draw(st.integers(0, 299_999)), data.draw(st.integers(0, 14))
    bits[at] ^= 1 << bit
    assert int(digests.digest(tensors)) != before
    bits[at] ^= 1 << bit
    assert int(digests.digest(tensors)) == before


# -- time ----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=200))
def test_percentiles_are_measured_values_in_order(values: list[float]) -> None:
    steps = [Split(whole=value, input=0.0, own=value, communication=0.0) for value in values]
    found = summary(steps)
    assert {found.p50, found.p95, found.p99} <= set(values)
    assert found.p50 <= found.p95 <= found.p99 <= max(values)


def test_the_parts_of_a_step_add_up() -> None:
    step = Split(whole=10.0, input=1.0, own=6.0, communication=3.0)
    found = summary([step, step])
    assert (found.input, found.compute, found.communication) == (1.0, 6.0, 3.0)
    assert found.total == 20.0


def window(*own: float, steps: int = 20) -> tuple[list[Summary], list[float]]:
    """Return the reports of ranks with these times of their own; steps take the longest one."""
    whole = max(own)
    ranks = [[Split(whole=whole, input=0.0, own=each, communication=0.0)] * steps for each in own]
    return [summary(each) for each in ranks], [whole] * steps


def windows_of(*windows: tuple[list[Summary], list[float]]) -> Windows:
    found = Windows()
    for rows, slowest in windows:
        found.add(rows, slowest)
    return found


@pytest.mark.parametrize(
    "windows",
    [
        # It recovered.
        [*[window(0.1, 0.1, 0.15)] * 5, window(0.1, 0.1, 0.1)],
        # Later all were slow.
        [window(0.1, 0.1, 0.15), window(0.4, 0.4, 0.41)],
    ],
)
def test_the_slowest_rank_is_relative_to_the_others_in_its_window(windows: list[Any]) -> None:
    assert [row.own for row in windows_of(*windows).worst] == [0.1, 0.1, 0.15]


@given(st.permutations([40, 30, 3]))
def test_a_few_steps_at_the_end_accuse_nobody(steps: list[int]) -> None:
    windows = [window(0.1, 0.9 if few < 20 else 0.1, 0.1, steps=few) for few in steps]
    found = windows_of(*windows)
    assert [row.own for row in found.worst] == [0.1, 0.1, 0.1]
    assert found.p50 == 0.1
    # Without a longer window they count.
    assert windows_of(window(0.1, 0.1, 0.9, steps=3)).worst[2].own == 0.9


def test_the_rate_is_that_of_the_whole_run_and_the_median_that_of_its_slowest_part() -> None:
    found = windows_of(window(0.1, steps=30), window(0.2, steps=30), window(0.1, steps=30))
    assert found.rate == pytest.approx(90 / 12)
    assert found.p50 == 0.2


@given(st.integers(1, 300), st.integers(21, 1000), st.floats(1e-6, 100))
def test_the_clock_is_read_in_time_and_at_every_comparison(
    every: int, step: int, last: float
) -> None:
    options = train.options_of(["--every", str(every)])
    ahead = Clock(options, lambda *_: (GO_ON, 1)).ahead(step, last)
    assert ahead == 1 or ahead * last <= LOOK_SECONDS
    assert 1 <= ahead <= every - step % every


def test_all_ranks_follow_rank_0_and_ask_it_again_at_the_same_step() -> None:
    """Steps of 30 s: rank 0 is asked at each, and its clock alone ends the run."""
    options = train.options_of(["--minutes", "0.00001", "--report", "1000"])
    decisions: list[tuple[int, int]] = []

    def wished(*mine: int) -> tuple[int, int]:
        decisions.append((mine[0], mine[1]))
        return decisions[-1]

    first = Clock(options, wished)
    other = Clock(train.options_of(["--minutes", "1000"]), lambda *mine: decisions[-1])
    time.sleep(0.001)
    for step in range(22):
        expected = END if step == LEAST_STEPS + 1 else GO_ON
        assert [clock.look(step, 30.0) for clock in (first, other)] == [expected] * 2
    assert first.next == other.next == LEAST_STEPS + 2


# -- models --------------------------------------------------------------------------------------


@real
def test_the_models_are_those_of_the_command_line(torch: Any) -> None:
    import train_models

    assert ("mlp", *train_models.RESNETS, *train_models.GPT) == train.MODELS


def with_comparison(gpt: Any) -> float:
    """Return the memory of a transformer, with attention that is kept for compared samples."""
    more = 12 * gpt.width + 5 * gpt.heads * gpt.sequence
    compared = gpt.fitting(gpt.micro) * gpt.sequence * gpt.layers * more / 1e9
    return float(gpt.gigabytes + compared)


@real
@pytest.mark.parametrize("name", ["gpt-16", "gpt-40", "gpt-80", "gpt-141", "gpt-192"])
def test_a_transformer_fills_the_memory_of_its_gpu(torch: Any, name: str) -> None:
    from train_models import GPT

    gpt, size = GPT[name], int(name[4:])
    assert 0.7 <= gpt.gigabytes / size <= 0.9
    assert with_comparison(gpt) <= 0.95 * size


@pytest.mark.rare
@real
@pytest.mark.parametrize("gigabytes", [16, 24, 40, 80, 141, 192, 288])
def test_a_model_that_loads_a_gpu_fits_with_its_comparisons(torch: Any, gigabytes: int) -> None:
    import rank_io
    import train_models

    train_models.load_gpu(gigabytes)
    gpt = train_models.GPT[train_models.FIT]
    assert with_comparison(gpt) <= 0.95 * gigabytes
    # The step of a piece takes long, compared with the start of its kernels.
    assert 6 * gpt.parameters * gpt.sequence * gpt.micro >= 5e12
    with pytest.raises(rank_io.Unusable):
        train_models.load_gpu(4)


@real
def test_a_transformer_has_the_computed_number_of_parameters(torch: Any) -> None:
    from train_models import GPT, build

    model = build("gpt-tiny", (32,), 0, norm="group", width=0)
    assert sum(p.numel() for p in model.parameters()) == GPT["gpt-tiny"].parameters
    text = torch.randint(256, (2, 32))
    changed = text.clone()
    changed[:, 20:] = 7
    with torch.no_grad():
        one, other = model(text), model(changed)
    assert one.shape == (2, 32, 256)
    # Causal: later tokens do not change earlier results.
    assert torch.equal(one[:, :20], other[:, :20])
    assert not torch.equal(one[:, 20:], other[:, 20:])


@real
@pytest.mark.parametrize(
    # Published with batch norms, which have as many parameters: He et al. 2015, torchvision.
    ("name", "parameters"),
    [("resnet18", 11_689_512), ("resnet50", 25_557_032)],
)
def test_a_resnet_has_the_published_number_of_parameters(
    torch: Any, name: str, parameters: int
) -> None:
    from train_models import build

    model = build(name, (3, 64, 64), 1000, norm="group", width=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


@real
def test_operations_are_those_of_layers_forward_and_twice_backward(torch: Any) -> None:
    from train_models import GPT, build, flops_of

    mlp = build("mlp", (64,), 10, norm="group", width=256)
    assert flops_of(mlp, torch.zeros(3, 64)) == 6 * (64 * 256 + 256 * 256 + 256 * 10)
    tiny = GPT["gpt-tiny"]
    model = build("gpt-tiny", (32,), 0, norm="group", width=0)
    weights = 12 * tiny.layers * tiny.width**2 + tiny.vocabulary * tiny.width
    per_token = 6 * weights + 12 * tiny.layers * tiny.width * tiny.sequence
    assert flops_of(model, torch.zeros(2, 32, dtype=torch.int64)) == 32 * per_token


@real
@pytest.mark.parametrize(
    ("model", "shape", "classes"), [("gpt-tiny", (3, 8, 8), 10), ("mlp", (32,), 0)]
)
def test_a_model_refuses_data_it_cannot_read(
    torch: Any, model: str, shape: tuple[int, ...], classes: int
) -> None:
    from train_models import build

    with pytest.raises(Unusable, match="cannot learn such data"):
        build(model, shape, classes, norm="group", width=8)


# -- data ----------------------------------------------------------------------------------------


def loaded(*arguments: str) -> Any:
    import train_data

    options = train.options_of(list(arguments))
    return train_data.load(options, options.batch, "cpu")


@real
@pytest.mark.parametrize("model", ["mlp", "resnet18", "gpt-tiny"])
def test_a_sample_does_not_depend_on_the_samples_around_it(torch: Any, model: str) -> None:
    data, again = loaded("--model", model), loaded("--model", model)
    inputs, labels = data.take(40, 20)
    for first, count in ((40, 7), (47, 13)):
        some, theirs = again.take(first, count)
        assert torch.equal(some, inputs[first - 40 : first - 40 + count])
        assert torch.equal(theirs, labels[first - 40 : first - 40 + count])
    assert inputs.shape[1:] == (data.shape if model != "gpt-tiny" else (32,))


def fashion(folder: Path) -> None:
    """FashionMNIST of six images of 28 x 28, in its own format."""
    pixels = bytes(n % 251 for n in range(6 * 28 * 28))
    images = struct.pack(">HBBIII", 0, 8, 3, 6, 28, 28) + pixels
    labels = struct.pack(">HBBI", 0, 8, 1, 6) + bytes(range(6))
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("images-idx3", images), ("labels-idx1", labels)):
        (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(data))


def rows(labels: int) -> bytes:
    """Four CIFAR images, image n full of n, with `labels` labels, the last one n."""
    return b"".join(bytes([99] * (labels - 1) + [n]) + bytes([n]) * 3072 for n in range(4))


def pickled(labels: str) -> bytes:
    """Return the same data as CIFAR's Python version stores it."""
    numpy = pytest.importorskip("numpy")
    data = numpy.repeat(numpy.arange(4, dtype=numpy.uint8), 3072).reshape(4, 3072)
    return pickle.dumps({b"data": data, labels.encode(): [0, 1, 2, 3]}, protocol=2)


@real
def test_fashion_mnist_is_read_from_its_idx_files(torch: Any, tmp_path: Path) -> None:
    import train_files

    fashion(tmp_path / "FashionMNIST" / "raw")
    pixels, labels = train_files.read("fashion-mnist", str(tmp_path))
    assert pixels.shape == (6, 1, 28, 28)
    assert pixels.view(-1)[:252].tolist() == [n % 251 for n in range(252)]
    assert labels.tolist() == list(range(6))
    data = loaded("--dataset", "fashion-mnist", "--path", str(tmp_path))
    inputs, _ = data.take(0, 16)
    assert (inputs.shape, data.classes) == ((16, 1, 28, 28), 6)


@real
@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
def test_both_versions_of_cifar_are_read(torch: Any, tmp_path: Path, name: str, form: str) -> None:
    import train_files

    ten = name == "cifar-10"
    names = [f"data_batch_{n}" for n in range(1, 6)] if ten else ["train"]
    data = (
        rows(1 if ten else 2) if form == "binary" else pickled("labels" if ten else "fine_labels")
    )
    for file in names:
        (tmp_path / (file + ".bin" * (form == "binary"))).write_bytes(data)
    pixels, labels = train_files.read(name, str(tmp_path))
    assert pixels.shape == (4 * len(names), 3, 32, 32)
    assert labels.tolist() == [0, 1, 2, 3] * len(names)
    assert torch.equal(pixels[:, 2, 31, 31].long(), labels)


class Trap:
    """An object whose pickle calls a function when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SimpleNamespace, ()


@real
@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08", mtime=0), "damaged"),
        ("train", pickle.dumps({b"data": Trap()}, protocol=2), "it names types.SimpleNamespace"),
        ("train", pickle.dumps({b"data": 7}, protocol=2), "damaged"),
        ("train", b"", "damaged"),
        ("train.bin", rows(2)[:-1], "damaged"),
        ("other", b"", "there should be"),
    ],
)
def test_an_invalid_file_is_refused_and_its_code_does_not_run(
    torch: Any, tmp_path: Path, name: str, data: bytes, expected: str
) -> None:
    import train_files

    fashion(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Unusable, match=expected):
        train_files.read("fashion-mnist" if name.endswith(".gz") else "cifar-100", str(tmp_path))


@real
def test_a_folder_of_images_needs_pillow(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(Unusable, match="pip install pillow"):
        loaded("--dataset", "image-folder", "--path", str(tmp_path))


@real
def test_the_subfolders_of_images_are_the_classes(torch: Any, tmp_path: Path) -> None:
    import PIL.Image

    for number, name in enumerate(("ant", "bee")):
        (tmp_path / name).mkdir()
        for size in ((40, 20), (20, 40)):
            shade = (200 * number,) * 3
            PIL.Image.new("RGB", size, shade).save(tmp_path / name / f"{size[0]}.png")
    data = loaded("--dataset", "image-folder", "--path", str(tmp_path), "--image", "16")
    inputs, labels = data.take(0, 4)
    assert inputs.shape == (4, 3, 16, 16)
    assert sorted(labels.tolist()) == [0, 0, 1, 1]
    assert torch.equal(inputs[:, 0, 0, 0] > 0, labels == 1)
    (tmp_path / "bee" / "40.png").write_bytes(b"none")
    with pytest.raises(Unusable, match="not a readable image"):
        data.take(0, 4)


# -- a run on one rank, in this process ----------------------------------------------------------

Made = Callable[..., Any]


@pytest.fixture
def made(torch: Any) -> Iterator[Made]:
    """Return a function that makes the training of a command line, on the only rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    me = Identity(rank=0, size=1, local_rank=0, local_size=1, host="h")
    nothing = Injected(faults=frozenset())

    def make(*arguments: str) -> Any:
        options = train.options_of(list(arguments))
        rank = Rank(me=me, progress=Progress(0, ""), injected=nothing, device="cpu")
        return train.Training(options, rank)

    yield make
    dist.destroy_process_group()


def reference(training: Any) -> tuple[list[float], float]:
    found = reference_of(settings_of(training.options, training.batch), training.options.precision)
    assert found is not None
    return found


def loss_now(training: Any) -> float:
    """Return the mean loss of the batch of this step, before it."""
    first = training.step_now * training.batch
    with training.torch.no_grad():
        pieces = [training.take(first + piece.start, len(piece)) for piece in training.pieces]
        losses = [training.loss_of(training.layers, *piece) for piece in pieces]
    return float(sum(losses) / training.batch)


@real
def test_resnet18_takes_its_first_steps_along_its_reference_curve(made: Made) -> None:
    training = made("--model", "resnet18", "--micro", "16")
    training.step()
    training.step_now += 1
    (first,) = training.parallel.settle()
    curve, tolerance = reference(training)
    assert deviation([first / training.batch, loss_now(training)], curve) <= tolerance


@real
def test_resnet50_begins_where_its_reference_curve_does_and_learns(made: Made) -> None:
    curve, tolerance = reference(training := made("--model", "resnet50", "--micro", "8"))
    assert deviation([loss_now(training)], curve) <= tolerance
    # A step takes seconds, so the images are small.
    small = made("--model", "resnet50", "--image", "16", "--batch", "16", "--rate", "0.001")
    before = loss_now(small)
    small.step()
    assert loss_now(small) < before


def records(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the last printed value of each metric and fact, by name."""
    printed = records_of(capsys.readouterr().out)
    return {one.get("metric") or one.get("fact") or one["problem"]: one["value"] for one in printed}


@real
def test_a_rank_prints_a_digest_that_depends_on_the_seed_only(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for seed in ("1", "1", "2"):
        made("--steps", "20", "--seed", seed).run()
        printed.append(records(capsys)["digest"])
    assert printed[0] == printed[1]
    assert set(printed[0]) == {"type", "size", "random", "device"}
    assert printed[0]["random"] != printed[2]["random"]


@real
@pytest.mark.parametrize("precision", ["autocast", "bf16"])
def test_the_curve_in_lower_precision_is_within_its_tolerance_of_float32(
    made: Made, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    assert made("--precision", precision).run()
    printed = records(capsys)
    # If the curves were equal, nothing would have been computed in lower precision.
    assert 1e-5 < printed["curve-deviation"] <= printed["curve-tolerance"]
    assert len(printed["loss-curve"]) == 60


@real
def test_a_run_of_minutes_ends_by_the_clock(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten seconds pass from look to look: they are at steps 21, 30, 40 and so on.
    ticks = itertools.count(0, 10).__next__
    clock = SimpleNamespace(monotonic=ticks, perf_counter=time.perf_counter)
    monkeypatch.setattr("train.time", clock)
    assert made("--minutes", "1", "--every", "10", "--report", "35").run()
    printed = records(capsys)
    assert len(printed["loss-curve"]) == 70
    assert printed["loss-last"] < printed["loss-target"] * printed["loss-first"]


# -- ranks that wait ------------------------------------------------------------------------------


def launched(work: Callable[[Identity], object], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the exit statuses of two ranks: 1 if a wait failed.

    Each is a fork of this process, which has imported torch already, because that takes seconds.
    """
    monkeypatch.setenv("ACCEPT_MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCEPT_MASTER_PORT", str(free_port()))
    started = []
    for rank in range(2):
        me = Identity(rank=rank, size=2, local_rank=rank, local_size=2, host=f"h{rank}")
        child = os.fork()
        if child == 0:
            status = 2
            try:
                work(me)
                status = 0
            except RuntimeError:
                status = 1
            finally:
                os._exit(status)
        started.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started]


#: Since 3.12, Python warns of forks in a process with threads, which those of xdist have.
forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
#: Seconds that ranks wait for each other, and how much later than the other rank one is.
SHORT, LATE = 2.0, 3.5
#: The same for tests in which no wait may fail.
LONG, LATER = 6.0, 8.0


@real
@forks
def test_a_rank_that_is_too_late_ends_the_wait_of_all(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_io

    def work(me: Identity) -> None:
        torch_io.join(me, "cpu", SHORT)
        time.sleep(LATE * me.rank)
        torch_io.wait_for_all()

    assert launched(work, monkeypatch) == [1, 1]


@pytest.mark.rare
@real
@forks
def test_a_download_may_take_longer_than_ranks_wait_for_each_other(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_io
    import train_data
    import train_files

    def slowly(_: str, folder: str) -> None:
        time.sleep(LATER)
        fashion(Path(folder))

    monkeypatch.setattr(train_files, "download", slowly)
    asked = "--dataset", "fashion-mnist", "--path", str(tmp_path), "--download"
    options = train.options_of(list(asked))

    def work(me: Identity) -> None:
        torch_io.join(me, "cpu", LONG)
        train_data.fetch(options, me, Progress(me.rank, ""))
        train_data.load(options, options.batch, "cpu")

    assert launched(work, monkeypatch) == [0, 0]


@pytest.mark.rare
@real
@forks
def test_a_checkpoint_may_take_longer_than_ranks_wait_for_each_other(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_io
    from train_report import save_and_load as save

    def slowly(folder: str, tensors: Sequence[Any], me: Identity) -> Any:
        time.sleep(LATER * me.rank)
        return save(folder, tensors, me)

    monkeypatch.setattr("train_report.save_and_load", slowly)
    options = train.options_of(["--steps", "20", "--checkpoint", str(tmp_path)])

    def work(me: Identity) -> None:
        torch_io.join(me, "cpu", LONG)
        injected = Injected(faults=frozenset())
        progress = Progress(me.rank, "")
        rank = Rank(me=me, progress=progress, injected=injected, device="cpu")
        train.Training(options, rank).run()

    assert launched(work, monkeypatch) == [0, 0]
