"""Every command in `deploy/` exists, with the options that it is given."""

from __future__ import annotations

import shlex

import click
import pytest

from tests.docs.test_guides import check
from tests.support.recipes import commands


@pytest.mark.req("P19")
@pytest.mark.parametrize(("place", "words"), commands(), ids=[place for place, _ in commands()])
def test_every_command_in_deploy_exists_with_its_options(place: str, words: list[str]):
    try:
        check(words)
    except (click.ClickException, AssertionError) as error:
        pytest.fail(f"{place}: holdfast {shlex.join(words)}: {error}")


def test_commands_are_found_in_every_kind_of_file():
    places = {place.partition(":")[0] for place, _ in commands()}
    assert {"holdfast-worker@.service", "compose.yaml", "worker.yaml", "migrate.yaml", "dashboard.yaml"} <= places
