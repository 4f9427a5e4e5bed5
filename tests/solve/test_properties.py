"""Properties that hold for every equation, delay, span and save time, on random ones.

The equation is y' = A y + Σ tanh(B_j h_j) + c with h_j its history. If all delays are holds, the
reference is the exact solution from knot to knot, computed in NumPy from the definition of a hold.
If there is a lag, it is SciPy by the method of steps. `LAGRAX_SOAK=50` multiplies the number of
examples, as `make soak` does.
"""

import functools
import itertools
import os

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from helpers.reference import held_instant, reference
from hypothesis import assume, given, settings, strategies as st
from jax.flatten_util import ravel_pytree

import lagrax
from lagrax import Adjoint, Checkpointed, Direct, Hold, Lag

MORE = int(os.environ.get("LAGRAX_SOAK", "1"))
SIZE, SAVED, INTERVALS = 2, 7, 12
TIGHT = diffrax.PIDController(rtol=1e-9, atol=1e-11)

# What a history consists of, as a function of two periods; with how many entries.
HELD = {
    "none": (0, lambda tau, other: []),
    "hold": (1, lambda tau, other: [Hold(tau)]),
    "older hold": (1, lambda tau, other: [Hold(tau, lag=2)]),
    "holds": (3, lambda tau, other: lagrax.holds(tau, 3)),
    "two clocks": (2, lambda tau, other: [Hold(tau), Hold(other, lag=1)]),
}
LAGGED = {
    "lag": (1, lambda tau, other: [Lag(tau)]),
    "hold and lag": (2, lambda tau, other: [Hold(tau), Lag(other)]),
}
BOTH = HELD | LAGGED
SPECIAL = ("hold", "older hold", "lag")


def examples(number):
    return settings(max_examples=MORE * number)


def kinds(*names):
    """Some kinds of history, since each takes long to compile. Special cases of others are slow."""
    slow = [pytest.mark.slow]
    cases = [pytest.param(name, marks=slow if name in SPECIAL else []) for name in names]
    return pytest.mark.parametrize("kind", cases)


def field(t, y, args, *, history):
    A, B, c = args
    past = [jnp.tanh(b @ h) for b, h in zip(B, history, strict=True)]
    return A @ y + c + sum(past)


def equation(seed, entries, dtype=np.float64):
    """A random field that neither blows up nor dies out within a few periods, and a start."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(SIZE, SIZE)) * 0.5 - 0.4 * np.eye(SIZE)
    B = rng.normal(size=(entries, SIZE, SIZE)) * 0.8
    c, y0 = rng.normal(size=(2, SIZE))
    return jax.tree.map(lambda x: x.astype(dtype), ((A, B, c), y0))


# --- what is drawn --------------------------------------------------------------------------------

seeds = st.integers(0, 2**32 - 1)
periods = st.floats(0.3, 1.5)


@st.composite
def spans(draw):
    """Two periods, a start, an end, and times between, the end among them; at most three of the
    shorter."""
    tau, other = draw(periods), draw(periods)
    t0 = draw(st.floats(-3, 3))
    length = draw(st.floats(0.05, 3)) * min(tau, other)
    fractions = draw(st.lists(st.floats(0, 1), min_size=SAVED - 1, max_size=SAVED - 1))
    ts = np.sort(t0 + length * np.array([*fractions, 1.0]))
    return tau, other, t0, t0 + length, np.clip(ts, t0, t0 + length)


def far_from_knots(kind, span, distance=1e-6):
    """Whether rounding cannot decide on which side of a knot the ends of a span lie."""
    tau, other, t0, t1, _ = span
    periods = [d.tau for d in BOTH[kind][1](tau, other)]
    places = np.array([(t / p) % 1 for p in periods for t in (t0, t1)])
    return bool(np.all((places > distance) & (places < 1 - distance)))


# --- the references -------------------------------------------------------------------------------


def flow(A, y, g, s):
    """The exact solution of y' = A y + g after time s."""
    joined = np.zeros((SIZE + 1, SIZE + 1))
    joined[:SIZE, :SIZE], joined[:SIZE, SIZE] = A, g
    return (scipy.linalg.expm(joined * s) @ np.append(y, 1.0))[:SIZE]


def exact(args, y0, delays, t0, t1, ts):
    """States at `ts`, from the definition of a hold."""
    A, B, c = args
    instants = [d.times if d.times is not None else d.tau * np.arange(-20, 40) for d in delays]
    inner = {float(t) for times in instants for t in times if t0 < t < t1}
    points = [t0, *sorted(inner), t1]
    states = {t0: y0}

    def state(t):
        """At an instant that was a knot, or before the start."""
        known = t is not None and t > t0
        return states[min(states, key=lambda s: abs(s - t))] if known else y0

    answers = np.full((len(ts), SIZE), np.nan)
    for begin, end in itertools.pairwise(points):
        held = [state(held_instant(d, (begin + end) / 2)) for d in delays]
        g = c + sum((np.tanh(b @ h) for b, h in zip(B, held, strict=True)), np.zeros(SIZE))
        for i, t in enumerate(ts):
            if begin <= t <= end:
                answers[i] = flow(A, states[begin], g, t - begin)
        states[end] = flow(A, states[begin], g, end - begin)
    return answers


def by_steps(args, y0, delays, t0, t1, ts):
    A, B, c = args

    def f(t, y, history):
        return A @ y + c + sum(np.tanh(b @ h) for b, h in zip(B, history, strict=True))

    return reference(f, t0, t1, lambda t: y0, delays, ts, rtol=1e-10, atol=1e-12)


# --- compiled once for each kind ------------------------------------------------------------------


@functools.cache
def compile_solve(kind, **options):
    """A solve whose delays, span and save times are arguments, so that it is compiled once."""
    options = {"stepsize_controller": TIGHT, "max_steps": 1024} | options

    @jax.jit
    def solve(args, y0, tau, other, t0, t1, ts):
        return lagrax.solve(
            field,
            t0,
            t1,
            y0,
            args,
            delays=BOTH[kind][1](tau, other),
            intervals=INTERVALS,
            saveat=diffrax.SaveAt(ts=ts, t1=True),
            **options,
        )

    return solve


def close(found, expected, tolerance):
    scale = 1 + np.max(np.abs(expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


# --- solve agrees with an exact or brute-force reference ------------------------------------------


@kinds(*HELD)
@examples(50)
@given(seed=seeds, span=spans())
def test_held_equations_have_their_exact_solution(kind, seed, span, x64):
    assume(far_from_knots(kind, span))
    entries, make = HELD[kind]
    args, y0 = equation(seed, entries)
    sol = compile_solve(kind)(args, y0, *span)
    tau, other, t0, t1, ts = span
    expected = exact(args, y0, make(tau, other), t0, t1, [*ts, t1])
    close(sol.ys, expected, 1e-7)


@kinds(*HELD)
@examples(50)
@given(seed=seeds, span=spans())
def test_held_equations_in_float32(kind, seed, span):
    assume(far_from_knots(kind, span, 1e-4))
    entries, make = HELD[kind]
    args, y0 = equation(seed, entries, np.float32)
    solve = compile_solve(kind, stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-6))
    sol = solve(args, y0, *(np.asarray(x, np.float32) for x in span))
    assert sol.ys.dtype == jnp.float32
    tau, other, t0, t1, ts = (np.asarray(x, np.float32).tolist() for x in span)
    expected = exact(args, y0, make(tau, other), t0, t1, [*ts, t1])
    close(sol.ys, expected, 3e-4)


@kinds(*LAGGED)
@examples(25)
@given(seed=seeds, span=spans())
def test_lagged_equations_agree_with_scipy(kind, seed, span, x64):
    assume(far_from_knots(kind, span))
    entries, make = LAGGED[kind]
    args, y0 = equation(seed, entries)
    tau, other, t0, t1, ts = span
    sol = compile_solve(kind)(args, y0, *span)
    close(sol.ys, by_steps(args, y0, make(tau, other), t0, t1, [*ts, t1]), 1e-6)


@st.composite
def irregular_times(draw):
    gaps = draw(st.lists(st.floats(0.05, 1.5), min_size=5, max_size=5))
    return np.cumsum(gaps) - draw(st.floats(0, 3))


@examples(50)
@given(seed=seeds, times=irregular_times(), span=spans(), lag=st.integers(0, 1))
def test_irregular_instants(seed, times, span, lag, x64):
    _, _, t0, t1, ts = span
    assume(np.min(np.abs(times - [[t0], [t1]])) > 1e-6)
    args, y0 = equation(seed, 1)
    sol = irregular(lag)(args, y0, times, t0, t1, ts)
    close(sol.ys, exact(args, y0, [Hold(times=times, lag=lag)], t0, t1, ts), 1e-7)


@functools.cache
def irregular(lag):
    @jax.jit
    def solve(args, y0, times, t0, t1, ts):
        saveat, delays = diffrax.SaveAt(ts=ts), [Hold(times=times, lag=lag)]
        options = {"stepsize_controller": TIGHT, "intervals": 6}
        return lagrax.solve(field, t0, t1, y0, args, delays=delays, saveat=saveat, **options)

    return solve


@kinds("none", "two clocks", "hold and lag")
@settings(max_examples=6 if MORE == 1 else 20)  # each is compiled anew
@given(seed=seeds, span=spans(), steps=st.sampled_from([None, 40]))
def test_known_delays_are_as_traced_ones(kind, seed, span, steps, x64):
    """Known delays and spans are handled by other code than traced ones."""
    assume(far_from_knots(kind, span))
    entries, make = BOTH[kind]
    args, y0 = equation(seed, entries)
    tau, other, t0, t1, ts = span
    options = {"stepsize_controller": TIGHT} if steps is None else {"steps": steps}
    saveat = diffrax.SaveAt(ts=ts, t1=True)
    sol = lagrax.solve(field, t0, t1, y0, args, delays=make(tau, other), saveat=saveat, **options)
    close(sol.ys, compile_solve(kind)(args, y0, *span).ys, 1e-6)


# --- what a solve must not depend on --------------------------------------------------------------


@kinds("two clocks", "hold and lag")
@examples(20)
@given(seed=seeds, span=spans(), part=st.floats(0.05, 0.95))
def test_two_solves_one_after_the_other_are_one(kind, seed, span, part, x64):
    assume(far_from_knots(kind, span))
    tau, other, t0, t2, _ = span
    t1 = t0 + part * (t2 - t0)
    assume(far_from_knots(kind, (tau, other, t1, t2, None)))
    args, y0 = equation(seed, BOTH[kind][0])
    whole, second = in_two(kind)(args, y0, tau, other, t0, t1, t2)
    close(second, whole, 1e-6)


@functools.cache
def in_two(kind):
    make, options = BOTH[kind][1], {"stepsize_controller": TIGHT, "max_steps": 256}
    dense = diffrax.SaveAt(dense=True)

    @jax.jit
    def solve(args, y0, tau, other, t0, t1, t2):
        delays = make(tau, other)
        run = functools.partial(
            lagrax.solve, field, args=args, delays=delays, intervals=INTERVALS, **options
        )
        first = run(t0, t1, y0, saveat=dense)

        def past(t):
            inside = first.evaluate(jnp.clip(t, t0, t1))
            return jnp.where(t <= t0, y0, inside)

        return run(t0, t2, y0).ys[-1], run(t1, t2, past).ys[-1]

    return solve


@kinds("hold", "holds", "lag", "hold and lag")
@examples(30)
@given(seed=seeds, span=spans(), periods=st.integers(-5, 5), by=st.floats(-5, 5))
def test_shifting_time_shifts_the_solution(kind, seed, span, periods, by, x64):
    """Lags may be shifted by any time, holds by whole periods."""
    tau, other, t0, t1, ts = span
    holds = any(isinstance(d, Hold) for d in BOTH[kind][1](tau, other))
    other = tau if kind == "two clocks" else other
    shift = periods * tau if holds else by
    span, shifted = (tau, other, t0, t1, ts), (tau, other, t0 + shift, t1 + shift, ts + shift)
    assume(far_from_knots(kind, span) and far_from_knots(kind, shifted))
    args, y0 = equation(seed, BOTH[kind][0])
    solve = compile_solve(kind)
    close(solve(args, y0, *shifted).ys, solve(args, y0, *span).ys, 1e-6)


@kinds("none", "two clocks", "hold and lag")
@examples(20)
@given(seed=seeds, span=spans(), other_ts=st.lists(st.floats(0, 1), min_size=SAVED, max_size=SAVED))
def test_save_times_do_not_change_the_solution(kind, seed, span, other_ts, x64):
    tau, other, t0, t1, ts = span
    args, y0 = equation(seed, BOTH[kind][0])
    others = np.clip(np.sort(t0 + (t1 - t0) * np.array(other_ts)), t0, t1)
    a, b = (compile_solve(kind)(args, y0, tau, other, t0, t1, x) for x in (ts, others))
    np.testing.assert_array_equal(a.ys[-1], b.ys[-1])
    np.testing.assert_array_equal(a.knots.ys, b.knots.ys)
    np.testing.assert_array_equal(a.stats["num_steps"], b.stats["num_steps"])


MEMBERS = 4


@kinds("holds", "hold and lag")
@examples(30)
@given(seed=seeds, members=st.lists(spans(), min_size=MEMBERS, max_size=MEMBERS))
def test_vmap_is_a_loop(kind, seed, members, x64):
    solve = compile_solve(kind)
    made = [equation(seed + i, BOTH[kind][0]) for i in range(MEMBERS)]
    rows = [
        (args, y0, *map(np.asarray, span)) for (args, y0), span in zip(made, members, strict=True)
    ]
    stacked = jax.tree.map(lambda *x: np.stack(x), *rows)
    together = over_members(kind)(*stacked)
    for i, row in enumerate(rows):
        alone = solve(*row)
        close(together.ys[i], alone.ys, 1e-8)


@functools.cache
def over_members(kind):
    return jax.jit(jax.vmap(compile_solve(kind)))


# --- gradients ------------------------------------------------------------------------------------


@kinds("two clocks", *(["lag"] if MORE > 1 else []))
@examples(20)
@given(seed=seeds, span=spans(), weights=seeds)
def test_the_three_gradients_agree(kind, seed, span, weights, x64):
    """They also agree with a finite difference in a random direction of start and parameters."""
    assume(far_from_knots(kind, span))
    args, y0 = equation(seed, BOTH[kind][0])
    cost = np.random.default_rng(weights).normal(size=(SAVED + 1, SIZE))
    ways = [Direct(), Checkpointed(), *([Adjoint()] if kind in HELD else [])]
    found = [ravel_pytree(slopes(kind, way)((args, y0), cost, *span))[0] for way in ways]
    close(found[1], found[0], 1e-11)
    if kind in HELD:
        close(found[2], found[0], 1e-6)

    flat, back = ravel_pytree((args, y0))
    direction = np.random.default_rng(weights + 1).normal(size=flat.size)
    direction /= np.linalg.norm(direction)
    up, down = (
        np.sum(cost * compile_solve(kind)(*back(flat + h * direction), *span).ys)
        for h in (1e-4, -1e-4)
    )
    close(direction @ found[0], (up - down) / 2e-4, 1e-5)


@functools.cache
def slopes(kind, way):
    solve = compile_solve(kind, gradient=way)

    @jax.jit
    def slope(made, cost, *span):
        return jax.grad(lambda made: jnp.sum(cost * solve(*made, *span).ys))(made)

    return slope
