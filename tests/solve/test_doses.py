"""`doses` against superposition of the answers to single doses."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.refusals import check_words

import lagrax

NAN = float("nan")
RATE = 0.3
TABLE = {
    "ID": [1, 1, 1, 1, 2, 2],
    "TIME": [0.0, 1.0, 2.0, 3.0, 0.5, 4.0],
    "AMT": [10.0, 6.0, NAN, 8.0, 5.0, NAN],
    "RATE": [0.0, 2.0, 0.0, 4.0, 0.0, 0.0],
    "II": [2.0, 0.0, 0.0, 1.5, 0.0, 0.0],
    "ADDL": [2, 0, 0, 1, 0, 0],
    "EVID": [1, 1, 0, 1, 1, 0],
}
TS = np.linspace(0.0, 8.0, 17)


def superpose(boluses, infusions):
    """The amount at `TS`, of single doses in one compartment."""
    total = np.zeros_like(TS)
    for begin, amount in boluses:
        total += np.where(begin <= TS, amount * np.exp(-RATE * (TS - begin)), 0)
    for begin, amount, rate in infusions:
        end = begin + amount / rate
        rise = rate / RATE * (1 - np.exp(-RATE * (np.minimum(TS, end) - begin)))
        total += np.where(begin <= TS, rise * np.exp(-RATE * np.maximum(TS - end, 0)), 0)
    return total


def solve(doses):
    return lagrax.solve(
        lambda t, y, rate, *, history: history[0] - rate * y,
        *(0.0, 8.0, 0.0, RATE),
        delays=[doses.infusion()],
        jumps=[doses.boluses()],
        saveat=diffrax.SaveAt(ts=TS),
        steps=20,
    ).ys


FIRST = ([(0, 10), (2, 10), (4, 10)], [(1, 6, 2), (3, 8, 4), (4.5, 8, 4)])
SECOND = ([(0.5, 5)], [])


def test_doses_of_one_patient_superpose(x64):
    """Repeated boluses, and infusions that overlap."""
    one = {name: column[:4] for name, column in TABLE.items()}
    doses = lagrax.doses(one)
    np.testing.assert_allclose(doses.times, [0, 2, 4])
    np.testing.assert_allclose(doses.switches, [0, 1, 3, 4, 4.5, 5, 6.5])
    np.testing.assert_allclose(doses.rates, [0, 2, 6, 4, 8, 4, 0])
    np.testing.assert_allclose(solve(doses), superpose(*FIRST), atol=1e-7)


def test_doses_of_several_patients_are_rows(x64):
    doses = lagrax.doses(TABLE, by="ID")
    both = jax.jit(jax.vmap(solve))(doses)
    np.testing.assert_allclose(both, [superpose(*FIRST), superpose(*SECOND)], atol=1e-7)


def test_place_and_lag_of_boluses(x64):
    doses = lagrax.doses({"time": [0.0, 2.0], "amt": [10.0, 20.0]})

    def blood(lag, available):
        place = lambda amount: {"gut": available * amount, "blood": 0.0}
        return lagrax.solve(
            lambda t, y, args: {"gut": -y["gut"], "blood": y["gut"] - RATE * y["blood"]},
            *(0.0, 6.0, {"gut": 0.0, "blood": 0.0}),
            jumps=[doses.boluses(place, lag)],
            steps=30,
        ).ys["blood"][-1]

    def exact(lag, available):
        since = 6.0 - jnp.array([0.0, 2.0]) - lag
        rise = (jnp.exp(-RATE * since) - jnp.exp(-since)) / (1 - RATE)
        return available * jnp.sum(jnp.array([10.0, 20.0]) * rise)

    got = jax.value_and_grad(blood, argnums=(0, 1))(0.4, 0.8)
    expected = jax.value_and_grad(exact, argnums=(0, 1))(0.4, 0.8)
    np.testing.assert_allclose(jax.tree.leaves(got), jax.tree.leaves(expected), rtol=1e-7)


def test_columns_of_a_data_frame():
    pandas = pytest.importorskip("pandas")
    doses = lagrax.doses(pandas.DataFrame(TABLE), by="ID")
    assert doses.times.shape == (2, 3)


def change(**columns):
    return lambda: lagrax.doses({n: c[:4] for n, c in TABLE.items()} | columns)


BAD = {
    "no amounts": (lambda: lagrax.doses({"TIME": [0.0]}), ["TIME", "expected AMT"]),
    "two patients": (lambda: lagrax.doses(TABLE), ["2 values of ID", 'by="ID"']),
    "two compartments": (change(CMT=[1, 2, 1, 1]), ["2 values of CMT"]),
    "an unknown column": (lambda: lagrax.doses(TABLE, by="WHO"), ["by='WHO'", "TIME"]),
    "a reset": (change(EVID=[1, 3, 0, 1]), ["EVID of 3 or 4", "Jump"]),
    "a steady state": (change(SS=[1, 0, 0, 0]), ["SS", "earlier"]),
    "an estimated rate": (change(RATE=[0.0, -2.0, 0.0, 0.0]), ["RATE=-2", "at least 0"]),
    "an amount missing": (change(AMT=[NAN, 1.0, 1.0, 1.0]), ["AMT=nan"]),
    "a time missing": (change(TIME=[NAN, 1.0, 1.0, 1.0]), ["TIME=nan", "finite"]),
    "repeats at no interval": (change(II=[0.0, 0.0, 0.0, 1.0]), ["ADDL", "II above 0"]),
    "text": (change(AMT=["a", "b", "c", "d"]), ["AMT", "numbers"]),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_tables_are_refused(case):
    call, words = case
    with pytest.raises(ValueError, match="doses got") as caught:
        call()
    check_words(str(caught.value), words)
