"""Each class occurs as often as the others, and no element occurs again before all others of its class."""

import math
import pickle
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.sampling import Balance, balanced_length

small_labels = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(np.array)
many_labels = st.integers(65, 90).map(lambda classes: np.arange(classes * 2) % classes)
text_labels = st.lists(st.sampled_from(["cat", "dog", "", "a long name"]), min_size=1, max_size=20).map(np.array)
labels_of_all_kinds = st.one_of(small_labels, many_labels, text_labels)
seeds = st.integers(0, 2**64 - 1)


def keys_of(balance: Balance, epoch: int = 0) -> NDArray[np.int64]:
    """Return the keys of one epoch."""
    return balance.block(np.full(len(balance), epoch), np.arange(len(balance)))[1]


@given(labels_of_all_kinds, st.integers(1, 4), seeds, st.integers(0, 2**40))
def test_every_period_holds_every_class_once(labels: NDArray[Any], periods: int, seed: int, epoch: int) -> None:
    """Any C positions that begin at a multiple of C, the number of classes, have one element of each class."""
    classes = sorted(set(labels.tolist()))
    keys = keys_of(Balance(labels, len(classes) * periods, seed), epoch)
    for period in keys.reshape(periods, len(classes)):
        assert sorted(labels[period].tolist()) == classes


@given(labels_of_all_kinds, seeds, st.integers(0, 2**40))
def test_every_pass_over_a_class_holds_each_member_once(labels: NDArray[Any], seed: int, epoch: int) -> None:
    """The first n elements of a class with n members all differ, and so do the next n, up to the epoch's end."""
    counts: Counter[object] = Counter(labels.tolist())
    assert balanced_length(labels) == len(counts) * max(counts.values())
    length = balanced_length(labels) * 2 + 1
    keys = keys_of(Balance(labels, length, seed), epoch)
    for label in set(labels.tolist()):
        members = np.flatnonzero(labels == label)
        of_class = keys[labels[keys] == label]
        for start in range(0, len(of_class), len(members)):
            one_pass = of_class[start : start + len(members)].tolist()
            assert len(set(one_pass)) == len(one_pass)
            assert set(one_pass) <= set(members.tolist())


def test_the_order_of_a_period_is_even() -> None:
    """All orders of three classes are equally frequent, and so are all pairs of orders in two periods or two epochs."""
    labels = np.repeat(np.arange(3), 10_000)
    balance = Balance(labels, 3 * 40_000, seed=5)
    numbers = {order: number for number, order in enumerate(permutations(range(3)))}
    periods = [labels[keys_of(balance, epoch)].reshape(-1, 3).tolist() for epoch in (0, 1)]
    orders = [np.array([numbers[tuple(period)] for period in of_epoch]) for of_epoch in periods]
    for kinds, values in ((6, orders[0]), (36, orders[0][:-1] * 6 + orders[0][1:]), (36, orders[0] * 6 + orders[1])):
        counts, expected = np.bincount(values, minlength=kinds), len(values) / kinds
        statistic = float(((counts - expected) ** 2).sum() / expected)
        assert abs(statistic - (kinds - 1)) < 5 * math.sqrt(2 * (kinds - 1))


@pytest.mark.parametrize("classes", [64, 65])
def test_orders_differ(classes: int) -> None:
    """No two epochs, seeds, passes or periods share an order."""
    labels = np.arange(classes * 40) % classes
    passes = [
        one_pass.tobytes()
        for seed in range(3)
        for epoch in range(3)
        for one_pass in keys_of(Balance(labels, classes * 80, seed), epoch).reshape(2, -1)
    ]
    assert len(set(passes)) == len(passes)
    keys = keys_of(Balance(labels, classes * 80, 0))
    orders = {tuple(of_period) for of_period in labels[keys].reshape(80, classes).tolist()}
    assert len(orders) == 80
    of_first_class = keys[labels[keys] == 0].reshape(2, 40)
    assert of_first_class[0].tolist() != of_first_class[1].tolist()


def test_a_class_does_not_depend_on_the_others() -> None:
    """A class's members have the same order if there are more classes, or larger ones."""
    first = np.array(["cat"] * 50 + ["dog"] * 20)
    second = np.array(["cat"] * 50 + ["ant"] * 5 + ["dog"] * 90)
    orders: list[list[int]] = []
    for labels in (first, second):
        keys = keys_of(Balance(labels, len(set(labels.tolist())) * 120, seed=2), epoch=3)
        orders.append(keys[labels[keys] == "cat"].tolist())
    assert orders[0] == orders[1]


def test_it_is_its_labels() -> None:
    """Equal labels, of any width, make equal samplers; other labels, lengths or seeds make different ones and reprs."""
    labels = np.array(["a", "b", "a"])
    balance = Balance(labels, 10, seed=2)
    assert balance == Balance(labels.astype("U9"), 10, seed=2)
    assert balance == Balance(np.array(["a", "b", "a"], object), 10, seed=2)
    assert Balance(np.array([0, 1], np.uint8), 10, 2) == Balance(np.array([False, True]), 10, 2)
    others = [Balance(labels[::-1][:2], 10, 2), Balance(labels, 11, 2), Balance(labels, 10, 3)]
    assert len({repr(one) for one in [balance, *others]}) == len({balance, *others}) == 4
    assert balance != "balance"
    labels[0] = "b"
    twin: Balance = pickle.loads(pickle.dumps(balance))
    assert twin.labels.tolist() == balance.labels.tolist() == ["a", "b", "a"]
    assert not twin.labels.flags.writeable
    assert keys_of(twin).tolist() == keys_of(balance).tolist()
