"""values/images.yaml: public images, what each has, and the checks that follow from it."""

from __future__ import annotations

import re

import pytest
from tests.factories import dockerfile, images_table

from accept.config import load_machine
from accept.config.images import (
    REQUIRED,
    ImageTool,
    PublicImage,
    checks_with,
    images_for,
    public_images,
)
from accept.core.checks import REGISTRY

IMAGES = pytest.mark.parametrize("image", public_images(), ids=lambda one: one.image)


def test_the_table_in_the_docs_is_current() -> None:
    """`python -m tests.factories.images_table` writes it."""
    assert images_table.PAGE.read_text() == images_table.page()


@IMAGES
def test_an_image_has_a_fixed_tag_and_machines_that_exist(image: PublicImage) -> None:
    assert re.fullmatch(r"[a-z0-9./-]+:[\w.-]+", image.image)
    assert not image.image.endswith(":latest")
    assert all(load_machine(name).value.name == name for name in image.machines)
    assert not image.has & image.lacks


@IMAGES
def test_an_image_that_cannot_start_is_not_offered_and_has_a_target_that_completes_it(
    image: PublicImage,
) -> None:
    offered = any(image in images_for(machine) for machine in image.machines)
    assert offered == (image.starts and bool(image.machines))
    if not image.starts:
        assert image.target in dockerfile.stages()


def test_every_tool_that_a_check_needs_is_a_tool_of_images() -> None:
    needed = {t.name for check in REGISTRY.values() for choice in check.needs for t in choice}
    assert needed <= {tool.value for tool in ImageTool}


def test_all_tools_run_all_checks_and_no_tools_only_those_that_need_none() -> None:
    assert checks_with(frozenset(ImageTool)) == tuple(REGISTRY)
    assert set(checks_with(REQUIRED)) == {n for n, check in REGISTRY.items() if not check.needs}
