# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.clients._distributions import share_out
from dpcohort.data import (
    Partition,
    column_partition,
    dirichlet_partition,
    join_clients,
    load_partition,
    paper_partition,
    public_split,
    save_partition,
)
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError


def example(**changes):
    base = {"indices": np.array([5, 1, 3, 0]), "offsets": np.array([0, 1, 1, 4]), "records": 7}
    return Partition(**{**base, **changes})


@pytest.mark.parametrize("k", [-1, 3])
def test_a_client_that_is_not_there_is_refused(k):
    with pytest.raises(InputError, match="client = "):
        example().client(k)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([5, 1, 3, 7])}, r"indices\[3\] = 7"),
        ({"indices": np.array([5, -1, 3, 0])}, r"indices\[1\] = -1"),
        ({"indices": np.array([5, 1, 3, 5])}, "Record 5 occurs 2 times"),
        ({"indices": np.array([5.0, 1.0, 3.0, 0.0])}, "whole numbers"),
        ({"indices": np.array([[5, 1, 3, 0]])}, "whole numbers"),
        ({"offsets": np.array([0, 2, 1, 4])}, "offsets"),
        ({"offsets": np.array([1, 2, 4])}, "offsets"),
        ({"offsets": np.array([0, 2, 3])}, "offsets"),
        ({"offsets": np.array([0])}, "offsets"),
        ({"records": 0}, "records = 0"),
        ({"names": ("a", "b")}, "number of names = 2"),
    ],
)
def test_what_is_no_partition_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        example(**changes)


def test_what_was_saved_is_loaded(tmp_path):
    partition = example(rule={"name": "paper", "similarity": 30.0}, names=("a", "ü", "c"))
    save_partition(partition, tmp_path / "partition.npz")
    loaded = load_partition(tmp_path / "partition.npz")
    np.testing.assert_array_equal(loaded.indices, partition.indices)
    np.testing.assert_array_equal(loaded.offsets, partition.offsets)
    assert loaded.describe() == partition.describe()
    assert loaded.names == partition.names
    assert [path.name for path in tmp_path.iterdir()] == ["partition.npz"]


def test_the_hash_is_of_who_holds_what():
    assert example().sha256 == example(rule={"name": "other words"}).sha256
    # spelled out: a run that names a partition must mean the same one for ever
    spelled = b"dpcohort partition 1\n7\n3\n" + struct.pack("<8q", 0, 1, 1, 4, 5, 1, 3, 0) + b"[]"
    assert example().sha256 == hashlib.sha256(spelled).hexdigest()
    different = [
        example(indices=np.array([5, 1, 0, 3])),
        example(offsets=np.array([0, 1, 2, 4])),
        example(offsets=np.array([0, 1, 4])),
        example(records=8),
        example(names=("a", "b", "c")),
    ]
    assert len({example().sha256, *(other.sha256 for other in different)}) == 6


def test_no_single_flipped_byte_goes_unseen(tmp_path):
    path = tmp_path / "partition.npz"
    partition = example()
    save_partition(partition, path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        path.write_bytes(changed)
        try:
            loaded = load_partition(path)
        except DpcohortError:
            refused += 1
        else:  # a byte that means nothing, as a date in the archive
            assert loaded.sha256 == partition.sha256
    assert refused > len(whole) // 6


def test_content_that_was_not_hashed_is_refused(tmp_path):
    path = tmp_path / "partition.npz"
    save_partition(example(), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["indices"] = arrays["indices"][::-1]
    np.savez(path, **arrays)
    with pytest.raises(VerificationError, match="not the one that was saved"):
        load_partition(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "partition.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"partition\.npz: the file cannot|no array at all"):
        load_partition(path)


def test_another_npz_file_is_refused(tmp_path):
    path = tmp_path / "partition.npz"
    np.savez(path, indices=np.arange(3))
    with pytest.raises(FileFormatError, match="not a whole partition file"):
        load_partition(path)
    newer = np.frombuffer(b'{"format": "dpcohort-partition-9"}', np.uint8)
    np.savez(path, description=newer)
    with pytest.raises(FileFormatError, match="expected, found 'dpcohort-partition-9'"):
        load_partition(path)


def test_clients_are_joined_at_the_end():
    joined = join_clients(example(), [[6], [2, 4]])
    assert [joined.client(k).tolist() for k in range(5)] == [[5], [], [1, 3, 0], [6], [2, 4]]
    named = join_clients(example(names=("a", "b", "c")), [[6]], names=["public"])
    assert named.names == ("a", "b", "c", "public")


def test_records_that_nobody_holds_cost_no_memory():
    assert len(example(records=10**15)) == 3
    with pytest.raises(InputError, match="Record 5 occurs 2 times"):
        example(indices=np.array([5, 1, 5, 0]), records=10**15)


LABELS = np.random.default_rng(9).permutation(np.repeat(np.arange(10), 600))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def shares(partition, labels=LABELS, classes=10):
    counts = partition.label_counts(labels, classes)
    return counts / counts.sum(axis=1, keepdims=True)


def equal(records, count):
    """As many records each, within one."""
    return share_out(records, np.ones(count))


#: Of 20 clients.
UNEQUAL = share_out(6000, np.linspace(0.5, 1.5, 20))

RULES = {
    "paper": lambda labels, **how: paper_partition(labels, **{"similarity": 40, **how}),
    "dirichlet": lambda labels, **how: dirichlet_partition(labels, alpha=0.3, **how),
}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_record_has_exactly_one_client_and_sizes_are_exact(rule, data):
    labels = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=120)))
    seed = data.draw(st.integers(0, 2**32))
    count = data.draw(st.integers(1, len(labels)))
    everyone = RULES[rule](labels, sizes=equal(len(labels), count), rng=rng(seed))
    assert np.sort(everyone.indices).tolist() == list(range(len(labels)))
    assert len(everyone) == count
    assert everyone.sizes.min() >= 1


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    similarity=st.floats(0, 100),
    spare=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_stated_sizes_are_met_at_every_similarity(sizes, similarity, spare, seed):
    labels = rng(seed).integers(0, 5, sum(sizes) + spare)
    partition = paper_partition(labels, sizes=sizes, similarity=similarity, rng=rng(seed))
    assert partition.sizes.tolist() == sizes
    assert len(np.unique(partition.indices)) == sum(sizes)


@pytest.mark.parametrize("rule", RULES)
def test_sizes_that_leave_records_over_are_met_too(rule):
    partition = RULES[rule](LABELS, sizes=[7, 100, 1], rng=rng())
    assert partition.sizes.tolist() == [7, 100, 1]
    assert partition.describe()["unused_records"] == 6000 - 108


@pytest.mark.parametrize("rule", RULES)
def test_the_same_seed_gives_the_same_partition_and_another_another(rule):
    first, same, other = (
        RULES[rule](LABELS, sizes=equal(6000, 9), rng=rng(seed)) for seed in (1, 1, 2)
    )
    assert first.sha256 == same.sha256 != other.sha256


@pytest.mark.parametrize("rule", RULES)
def test_only_the_records_given_are_dealt_out(rule):
    pool = np.arange(0, 6000, 3)
    partition = RULES[rule](LABELS, sizes=equal(2000, 5), records=pool, rng=rng())
    assert np.sort(partition.indices).tolist() == pool.tolist()
    assert partition.records == 6000


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sizes": [3000, 3001]}, "sum of sizes = 6001 .* 6000 records"),
        ({"sizes": [2**62, 2**62, 2**62]}, "sum of sizes"),
        ({"sizes": [0, 5]}, "sizes = "),
        ({"sizes": [1.5]}, "sizes = "),
        ({"sizes": []}, "sizes = "),
        ({"sizes": [1, 1], "records": [0, 6000]}, "records = "),
        ({"sizes": [1, 1], "records": [-1, 0]}, "records = "),
        ({"sizes": [2, 1], "records": [0, 0, 1]}, "Record 0 occurs 2 times"),
        ({"sizes": [1], "records": [0.5]}, "records = "),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(rule, how, message):
    with pytest.raises(InputError, match=message):
        RULES[rule](LABELS, **how, rng=rng())


@pytest.mark.parametrize("labels", [[], [0.5, 1.0], [[0], [1]], ["a"]])
def test_labels_must_be_whole_numbers(labels):
    with pytest.raises(InputError, match="labels = "):
        paper_partition(labels, sizes=[1], rng=rng())


def test_similarity_100_is_iid():
    partition = paper_partition(LABELS, sizes=equal(6000, 10), similarity=100, rng=rng())
    # 600 draws without replacement of a label of share 0.1: std 0.0116, five of them 0.058
    assert np.abs(shares(partition) - 0.1).max() < 0.058


def test_similarity_0_is_sorted_by_label():
    partition = paper_partition(LABELS, sizes=UNEQUAL, similarity=0, rng=rng())
    counts = partition.label_counts(LABELS, 10)
    # consecutive pieces of the sorted list: 20 clients and 10 labels share 29 boundaries at most
    assert (counts > 0).sum() <= 29
    for row in counts:
        held = np.flatnonzero(row)
        assert (np.diff(held) == 1).all()


@pytest.mark.parametrize("similarity", [1, 30, 70, 99])
def test_between_the_two_the_iid_share_is_as_asked(similarity):
    sizes = np.full(10, 600)
    partition = paper_partition(LABELS, sizes=sizes, similarity=similarity, rng=rng())
    counts = partition.label_counts(LABELS, 10)
    # a client's own label has the sorted part and a tenth of the IID part; IID part is s %
    iid = sizes[0] * similarity / 100
    foreign = 600 - np.sort(counts, axis=1)[:, -2:].sum(axis=1)
    # at most two labels are cut into one client, the other eight come from the IID part
    assert np.abs(foreign - 0.8 * iid).max() < 5 * np.sqrt(iid) + 8
    assert partition.rule == {"name": "paper", "similarity": float(similarity)}


def test_the_order_of_clients_has_nothing_to_do_with_labels():
    correlations = []
    for seed in range(60):
        partition = paper_partition(LABELS, sizes=UNEQUAL, similarity=0, rng=rng(seed))
        mean_label = shares(partition) @ np.arange(10)
        correlations.append(np.corrcoef(np.arange(20), mean_label)[0, 1])
    # each has mean 0 and std 1/sqrt(19); the mean of 60 beyond five of its own is no chance
    assert abs(np.mean(correlations)) < 5 / np.sqrt(19 * 60)


@pytest.mark.parametrize("similarity", [-1, 101, float("nan"), "all"])
def test_similarity_must_be_a_percentage(similarity):
    with pytest.raises(InputError, match="similarity = "):
        paper_partition(LABELS, sizes=[9, 9], similarity=similarity, rng=rng())


def test_a_million_clients_are_dealt_out_exactly():
    labels = np.arange(3_000_000) % 10
    partition = paper_partition(labels, sizes=equal(3_000_000, 1_000_000), similarity=50, rng=rng())
    assert (len(partition), len(partition.indices)) == (1_000_000, 3_000_000)


def test_small_alpha_means_few_labels_and_large_alpha_means_all():
    few = dirichlet_partition(LABELS, sizes=np.full(10, 60), alpha=0.01, rng=rng())
    all_labels = dirichlet_partition(LABELS, sizes=np.full(10, 60), alpha=1e6, rng=rng())
    assert np.median((few.label_counts(LABELS, 10) > 0).sum(axis=1)) <= 2
    # 60 draws of share 0.1: std 0.0387, five of them 0.194
    assert np.abs(shares(all_labels) - 0.1).max() < 0.194


@pytest.mark.parametrize("alpha", [1e-300, 1e-9, 1e-3, 1e9])
def test_extreme_alpha_is_no_trouble(alpha):
    partition = dirichlet_partition(LABELS, sizes=equal(6000, 30), alpha=alpha, rng=rng())
    assert np.sort(partition.indices).tolist() == list(range(6000))


def test_dirichlet_follows_the_shares_of_unequal_classes():
    labels = np.repeat([0, 1], [9000, 1000])
    partition = dirichlet_partition(labels, sizes=np.full(50, 20), alpha=1e6, rng=rng())
    # 1000 draws of share 0.1: std 0.0095, five of them 0.047
    assert abs(labels[partition.indices].mean() - 0.1) < 0.047


@pytest.mark.parametrize("alpha", [0, -1.0, float("inf"), float("nan")])
def test_alpha_must_be_above_0(alpha):
    with pytest.raises(InputError, match="alpha = "):
        dirichlet_partition(LABELS, sizes=[9, 9], alpha=alpha, rng=rng())


def test_a_column_of_numbers_or_text():
    numbers = column_partition(np.array([30, 4, 30, 4, 100]))
    assert numbers.names == ("4", "30", "100")
    assert [numbers.client(k).tolist() for k in range(3)] == [[1, 3], [0, 2], [4]]
    text = column_partition(np.array(["b", "a", "b"]), records=[2, 1])
    assert [text.client(k).tolist() for k in range(2)] == [[1], [2]]


@pytest.mark.parametrize("values", [[], [0.5], [None, "a"], [["a"]], [float("nan")]])
def test_other_columns_are_refused(values):
    with pytest.raises(InputError, match="values = "):
        column_partition(values)


def test_the_public_share_is_held_out_and_joined():
    private, public = public_split(6000, share=0.05, rng=rng())
    assert len(public) == 300
    assert np.sort(np.concatenate([private, public])).tolist() == list(range(6000))
    partition = paper_partition(LABELS, sizes=equal(len(private), 10), records=private, rng=rng())
    joined = join_clients(partition, [public])
    assert len(joined) == 11
    assert np.sort(joined.indices).tolist() == list(range(6000))


def test_a_share_of_nothing_is_nothing():
    _, public = public_split(10, share=0, rng=rng())
    assert len(public) == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.96, float("nan")])
def test_some_record_must_stay_private(share):
    with pytest.raises(InputError, match="share = "):
        public_split(10, share=share, rng=rng())
