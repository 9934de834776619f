"""What `make release` makes: the same bytes for the same commit, nothing missing, nothing else, and a bill that is valid.

That both files install and run on every Python is tried by the release itself, and, for the wheel, by test_wheel.py.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.environments import needed
from tools.release.__main__ import main
from tools.release.bill import bill
from tools.release.build import ROOT, Built, ReleaseFailed, build
from tools.release.contents import check_contents
from tools.release.trying import extras, smoke_of

pytestmark = pytest.mark.together("wheel")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with one commit: what is in the working tree, committed or not."""
    folder = tmp_path_factory.mktemp("release") / "repository"
    folder.mkdir()
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("NO TEST OF RELEASES: they are made from commits, and git knows of none here")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    at = "2026-11-01T12:00:00Z"
    who = {f"GIT_{role}_{what}": "release" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {
        **os.environ,
        **who,
        "GIT_AUTHOR_DATE": at,
        "GIT_COMMITTER_DATE": at,
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--no-verify", "-m", "x"]):
        subprocess.run(["git", "-C", folder, *command], check=True, env=environment)


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"), repository=repository)


def test_the_same_commit_gives_the_same_bytes(repository: Path, built: Built, tmp_path: Path) -> None:
    """In another folder, later, by somebody with another umask, and with files around that were never committed."""
    other = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", repository, other], check=True)
    (other / "holdfast/left_over.py").write_text("x = 1\n")
    (other / "holdfast/__pycache__").mkdir()
    (other / "holdfast/__pycache__/app.cpython-311.pyc").write_bytes(b"x")
    before = os.umask(0o077)
    try:
        again = build(tmp_path / "built", repository=other)
    finally:
        os.umask(before)
    assert [file.name for file in again.files] == [file.name for file in built.files]
    assert [file.read_bytes() for file in again.files] == [file.read_bytes() for file in built.files]


def test_both_files_have_all_that_the_package_needs_and_nothing_else(repository: Path, built: Built) -> None:
    check_contents(built, repository)
    with tarfile.open(built.sdist) as sdist:
        names = sdist.getnames()
    assert not [name for name in names if "/tests/" in name or "/benchmarks/" in name or "__pycache__" in name]


@pytest.mark.parametrize(
    "gone", ["holdfast/py.typed", "holdfast/store/sql/items.sql", "holdfast/web/static/holdfast.css"]
)
def test_a_wheel_that_lacks_a_file_is_refused(repository: Path, built: Built, tmp_path: Path, gone: str) -> None:
    wheel = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as whole, zipfile.ZipFile(wheel, "w") as less:
        for name in whole.namelist():
            if name != gone:
                less.writestr(name, whole.read(name))
    with pytest.raises(ReleaseFailed, match=f"lacks {gone}"):
        check_contents(Built(built.sdist, wheel, built.commit, built.epoch), repository)


def test_an_archive_with_anything_else_in_it_is_refused(repository: Path, built: Built, tmp_path: Path) -> None:
    sdist = tmp_path / built.sdist.name
    with tarfile.open(built.sdist) as whole, tarfile.open(sdist, "w:gz") as more:
        for member in whole.getmembers():
            more.addfile(member, whole.extractfile(member))
        more.addfile(tarfile.TarInfo("holdfast-0.2.0/results.db"), io.BytesIO())
    with pytest.raises(ReleaseFailed, match=r"has what nobody needs: .*results.db"):
        check_contents(Built(sdist, built.wheel, built.commit, built.epoch), repository)


@pytest.mark.parametrize("name", ["holdfast/left.db", "holdfast/test_store.py"])
def test_what_does_not_belong_into_the_package_is_refused_although_it_was_committed(
    repository: Path, tmp_path: Path, name: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy, ignore=shutil.ignore_patterns(".git"))
    (copy / ".gitignore").unlink()
    (copy / name).write_text("")
    commit(copy)
    with pytest.raises(ReleaseFailed, match=f"these do not belong into a release: {name}"):
        check_contents(build(tmp_path / "built", repository=copy), copy)


def test_a_folder_with_files_of_somebody_else_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "SHA256SUMS").write_text("of an earlier release")
    assert main(["--into", str(tmp_path)]) == 1
    assert "holds 'thesis.txt', which no release has made" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["SHA256SUMS", "thesis.txt"]


def test_an_earlier_release_stays_if_the_commit_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "SHA256SUMS").write_text("of an earlier release")
    assert main(["--into", str(tmp_path), "--commit", "nosuch"]) == 1
    assert "nosuch" in capsys.readouterr().err
    assert (tmp_path / "SHA256SUMS").exists()


def test_every_extra_has_a_program_that_tries_it() -> None:
    assert [extra for extra in extras() if not smoke_of(extra).is_file()] == []


def test_the_bill_of_materials_is_valid_and_names_every_package_with_what_it_needs(
    built: Built, tmp_path: Path
) -> None:
    """By the schema of CycloneDX itself, and for packages as they are: those that the tests run with."""
    validation = pytest.importorskip("cyclonedx.validation.json")
    from cyclonedx.schema import SchemaVersion

    wanted = needed(ROOT, "web")
    for one in wanted:
        folder = Path(str(one.locate_file(""))) / str(one._path)  # type: ignore[attr-defined]
        (tmp_path / folder.name).symlink_to(folder)
    with zipfile.ZipFile(built.wheel) as wheel:
        wheel.extractall(tmp_path, [name for name in wheel.namelist() if ".dist-info/" in name])
    made = bill(tmp_path, ["web"], "3.11", built.epoch)
    assert made == bill(tmp_path, ["web"], "3.11", built.epoch)
    errors = validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(made))
    assert errors is None, errors
    found = {one["name"].lower() for one in made["components"]}
    assert found == {one.name.lower() for one in wanted}
    assert made["metadata"]["component"]["name"] == "holdfast"
    [ours] = [one for one in made["dependencies"] if one["ref"] == made["metadata"]["component"]["bom-ref"]]
    needs = {ref.removeprefix("pkg:pypi/").partition("@")[0] for ref in ours["dependsOn"]}
    assert needs == {"click", "cronsim", "msgspec", "pyyaml", "rich", "sqlalchemy", "jinja2", "starlette", "uvicorn"}
    assert all(one.get("licenses") for one in made["components"]), "each says under which licence it is"
