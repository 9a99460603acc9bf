# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dpcohort.data import user_cache
from dpcohort.data._load import SOURCES, data_roots, find_set, missing_set, source_named
from dpcohort.errors import InputError


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_the_register_fits_together(source):
    records = source.train_records + source.test_records
    pixels = math.prod(source.shape)
    assert SOURCES[source.name] is source
    assert len(source.normalisation.mean) == source.shape[0]
    if source.layout == "idx":
        headers = 2 * (4 + 3 * 4) + 2 * (4 + 4)
        assert sum(part.size for part in source.files) == records * (pixels + 1) + headers
        assert [a.name for a in source.archives] == [part.name for part in source.files]
    else:
        assert sum(part.size for part in source.files) == records * (pixels + 1)
    assert all(len(part.sha256) == 64 for part in source.files)
    assert all(len(archive.md5) == 32 for archive in source.archives)
    assert all(url.endswith("/") for url in source.urls)


def test_no_two_parts_have_the_same_content():
    checksums = [part.sha256 for source in SOURCES.values() for part in source.files]
    assert len(set(checksums)) == len(checksums)


def test_a_wrong_name_gets_the_nearest_one():
    with pytest.raises(InputError, match="Did you mean 'fashion-mnist'"):
        source_named("fashion_mnist")


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "mnist"), ("fashion-mnist", "fashion_mnist")]
)
def test_the_published_archives_have_these_sizes_and_sums(real_data, name, folder):
    for archive in SOURCES[name].archives:
        path = real_data / folder / archive.name
        if not path.is_file():
            pytest.skip(f"{archive.name} is not here as published")
        content = path.read_bytes()
        assert (len(content), hashlib.md5(content).hexdigest()) == (archive.size, archive.md5)


def lay(folder: Path, source, suffix: str = ".gz") -> Path:
    """Empty files with the right names: looking for a set reads none of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in source.files:
        name = next(name for name in part.names if Path(name).suffix == suffix)
        (folder / name).touch()
    return folder


def test_roots_come_in_the_order_promised(no_data_elsewhere, monkeypatch, tmp_path):
    monkeypatch.setenv("DPCOHORT_DATA", str(tmp_path / "variable"))
    given = tmp_path / "given"
    assert data_roots(given) == (given, tmp_path / "variable", no_data_elsewhere)


def test_the_cache_is_in_the_home_folder_unless_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_cache() == tmp_path / ".cache" / "dpcohort"


@pytest.mark.parametrize(
    ("name", "folder"),
    [(name, folder) for name, source in SOURCES.items() for folder in (*source.folders, ".")],
)
def test_every_spelling_of_a_folder_is_found(no_data_elsewhere, tmp_path, name, folder):
    source = SOURCES[name]
    suffix = ".gz" if source.layout == "idx" else ".bin"
    lay(tmp_path / "data" / folder, source, suffix)
    found = find_set(source, tmp_path / "data")
    assert found is not None
    assert None not in found[1]
    assert found[0] == tmp_path / "data" / folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_are_found_gzipped_or_not(no_data_elsewhere, tmp_path, suffix):
    lay(tmp_path / "mnist", SOURCES["mnist"], suffix)
    found = find_set(SOURCES["mnist"], tmp_path)
    assert found is not None
    assert None not in found[1]


def test_the_folder_given_wins_over_the_variable_and_that_over_the_cache(
    no_data_elsewhere, monkeypatch, tmp_path
):
    source = SOURCES["mnist"]
    monkeypatch.setenv("DPCOHORT_DATA", str(tmp_path / "variable"))
    order = [tmp_path / "given", tmp_path / "variable", no_data_elsewhere]
    for root in reversed(order):
        lay(root / "mnist", source)
        found = find_set(source, tmp_path / "given")
        assert found is not None
        assert found[0] == root / "mnist"


def test_a_system_package_is_found_last(no_data_elsewhere, tmp_path):
    source = replace(SOURCES["fashion-mnist"], system_folders=(str(tmp_path / "usr"),))
    assert find_set(source) is None
    lay(tmp_path / "usr", source)
    found = find_set(source)
    assert found is not None
    assert found[0] == tmp_path / "usr"


def test_a_named_folder_is_better_evidence_than_the_folder_itself(no_data_elsewhere, tmp_path):
    lay(tmp_path, SOURCES["fashion-mnist"])
    lay(tmp_path / "mnist", SOURCES["mnist"])
    found = find_set(SOURCES["mnist"], tmp_path)
    assert found is not None
    assert found[0] == tmp_path / "mnist"


def test_a_whole_set_later_wins_over_half_a_set_before(no_data_elsewhere, tmp_path):
    source = SOURCES["mnist"]
    half = lay(tmp_path / "given" / "mnist", source)
    (half / source.files[3].name).unlink()
    first = find_set(source, tmp_path / "given")
    assert first is not None
    assert None in first[1]
    lay(no_data_elsewhere / "mnist", source)
    found = find_set(source, tmp_path / "given")
    assert found is not None
    assert found[0] == no_data_elsewhere / "mnist"


def test_the_error_names_the_places_and_the_commands(no_data_elsewhere, tmp_path):
    message = str(missing_set(SOURCES["fashion-mnist"], tmp_path / "given"))
    for words in (
        "'fashion-mnist' was not found",
        str(tmp_path / "given"),
        str(no_data_elsewhere),
        "/usr/share/datasets/fashion-mnist",
        "dpcohort data fetch fashion-mnist",
        "apt-get install dataset-fashion-mnist",
        "DPCOHORT_DATA",
    ):
        assert words in message


def test_half_a_set_is_named_with_the_file_that_lacks(no_data_elsewhere, tmp_path):
    source = SOURCES["mnist"]
    folder = lay(tmp_path / "mnist", source)
    (folder / source.files[2].name).unlink()
    message = str(missing_set(source, tmp_path, find_set(source, tmp_path)))
    assert f"is not whole: {folder} has no t10k-images-idx3-ubyte.gz" in message
