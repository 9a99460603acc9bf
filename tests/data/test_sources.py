# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import math

import pytest

from dpcohort.data.sources import SOURCES, source_named
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
