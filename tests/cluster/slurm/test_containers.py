"""Runs in containers of Pyxis; a SPANK plugin of our own is its stand-in."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.runs import CONNECT, until
from tests.cluster.slurm.cluster import IMAGE
from tests.cluster.slurm.login import Login


def test_everything_runs_in_an_image_that_is_imported_once(
    make_login: Callable[..., Login],
) -> None:
    login = make_login(shared=True)
    # Only containers have something in this folder.
    login.site.write_text("backend: slurm\ntools: {venv: /srv}\n")
    done = login.run("--image", IMAGE, nodes=2, checks=CONNECT)
    assert done.ending == ("pass", 0), done.err
    pulled = (login.cluster.images / "pulled").read_text()
    assert pulled.split() == ["registry.example#accept:1.0"]
    until(lambda: not list(login.runs.rglob("*.sqsh")))
    login.nothing_is_left()
    login.evidence_holds(done)
