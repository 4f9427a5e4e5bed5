"""Rows and matrices of lags, distributed lags and delayed slopes."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Checkpointed, Direct, Distributed, Hold, Input, Jump, Lag, LagMatrix, Slope

TIGHT = diffrax.PIDController(rtol=1e-9, atol=1e-11)
PATHS = {"equal steps": {"steps": 3}, "adaptive steps": {"max_steps": 200}}


def past(t):
    return jnp.cos(t * jnp.array([1.0, 1.7, 0.4]))


# --- rows of lags ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_a_row_of_lags_equals_a_lag_for_each(path, x64):
    taus = [0.5, 0.8, 1.3]
    weights = jnp.array([1.0, -0.7, 0.3])

    def field(t, y, args, *, history):
        lagged = history[0] if len(history) == 1 else jnp.stack(history)
        return -y + jnp.sin(weights @ lagged)

    row, each = (
        lagrax.solve(field, 0.0, 2.0, past, delays=delays, **PATHS[path]).ys
        for delays in ([Lag(taus)], [Lag(tau) for tau in taus])
    )
    np.testing.assert_allclose(row, each, rtol=1e-13)


def test_the_program_does_not_grow_with_the_number_of_lags():
    def count_lines(n):
        def final(taus):
            field = lambda t, y, args, *, history: -y + jnp.mean(history[0], axis=0)
            delays = [Lag(taus)]
            return lagrax.solve(field, 0.0, 2.0, 1.0, delays=delays, steps=2, intervals=4).ys

        lowered = jax.jit(jax.grad(lambda x: final(x).sum())).lower(jnp.linspace(0.5, 0.9, n))
        return len(lowered.as_text().splitlines())

    assert count_lines(40) < 1.05 * count_lines(2)


# --- distributed lags -----------------------------------------------------------------------------

RATE = 3.0


def gamma_kernel(s, rate=RATE):
    """The density of the sum of three exponential times."""
    return rate**3 * s**2 * jnp.exp(-rate * s) / 2


def logistic(t, y, args, *, history):
    return y * (1 - history[0])


@pytest.fixture(scope="module")
def chain():
    """The same equation with the gamma kernel as a linear chain, from t = -10 on."""

    def rates(t, x, args):
        y, a, b, c = x
        return jnp.stack([y * (1 - c), RATE * (y - a), RATE * (a - b), RATE * (b - c)])

    with jax.enable_x64(True):
        return diffrax.diffeqsolve(
            *(diffrax.ODETerm(rates), diffrax.Dopri8(), -10.0, 3.0, 0.01, jnp.full(4, 0.3)),
            saveat=diffrax.SaveAt(dense=True),
            stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12),
        )


@pytest.mark.parametrize(("nodes", "accuracy"), [(8, 3e-2), (12, 1e-5), (16, 3e-8)])
def test_gamma_kernel_matches_the_linear_chain(nodes, accuracy, chain, x64):
    start = lambda t: chain.evaluate(jnp.maximum(t, -10.0))[0]
    delays = [Distributed(gamma_kernel, 8.0, nodes=nodes)]
    sol = lagrax.solve(logistic, 0.0, 3.0, start, delays=delays, steps=1)
    np.testing.assert_allclose(sol.ys[0], chain.evaluate(3.0)[0], atol=accuracy)
    # No interval is longer than the shortest lag, as the docstring has it.
    np.testing.assert_allclose(sol.stats["num_intervals"], 3.0 / (3.65 * 8.0 / nodes**2), rtol=0.1)


def test_distributed_lag_over_a_kink_converges_as_the_square_of_the_nodes(chain, x64):
    """The chain begins at rest, so its solution has a kink at t = -10."""
    errors = [
        lagrax.solve(
            *(logistic, -10.0, -7.0, 0.3),
            delays=[Distributed(gamma_kernel, 4.0, nodes=n)],
            steps=1,
        ).ys[0]
        - chain.evaluate(-7.0)[0]
        for n in (6, 12, 24)
    ]
    assert abs(errors[2]) < abs(errors[0]) / 10


def test_kernels_of_any_shape_weigh_the_state(x64):
    """z' = -z, so that the integral of exp(-s) z(t - s) over [0, 1] is z(t)."""
    matrix = jnp.array([[1.0, 2.0], [0.5, -1.0]])
    kernels = {
        "a number": (lambda s: jnp.exp(-s), jnp.ones(2)),
        "one for each component": (lambda s: jnp.exp(-s) * matrix[0], matrix[0]),
        "a matrix": (lambda s: jnp.exp(-s) * matrix, matrix),
    }
    for kernel, factor in kernels.values():
        seen = []

        def field(t, y, args, *, history):
            seen.append(history[0].shape)  # noqa: B023
            # Where the entry is as it should be, the slope is that of exp(-t).
            return -y + jnp.sum(history[0] - factor * y)  # noqa: B023

        delays = [Distributed(kernel, 1.0, nodes=8)]
        start = lambda t: jnp.exp(-t) * jnp.array([1.0, 3.0])
        sol = lagrax.solve(field, 0.0, 1.0, start, delays=delays, steps=1)
        np.testing.assert_allclose(sol.ys[0], start(1.0), rtol=1e-8)
        assert seen[0] == factor.shape


# --- matrices of lags -----------------------------------------------------------------------------

TAUS = np.array([[0.51, 0.92, 1.33], [0.64, 0.77, 0.58], [1.12, 0.83, 0.71]])
WEIGHTS = jnp.array([[1.0, -0.5, 0.3], [0.2, 0.8, 0.6], [-0.4, 0.9, 0.1]])


def network(t, y, weights, *, history):
    return -y + jnp.sum(weights * jnp.sin(history[0]), axis=1)


def reference_network(t, y, weights, *, history):
    """The same with one `Lag` for each pair."""
    lagged = jnp.stack(history).reshape(3, 3, 3)
    return -y + jnp.sum(weights * jnp.sin(jnp.einsum("ijj->ij", lagged)), axis=1)


def solve_network(delays, weights=WEIGHTS, field=network, **options):
    return lagrax.solve(field, 0.0, 2.0, past, weights, delays=delays, **options).ys[0]


@pytest.mark.parametrize("path", PATHS)
def test_matrix_of_lags_equals_a_lag_for_each_pair(path, x64):
    each = [Lag(float(tau)) for tau in TAUS.ravel()]
    expected = solve_network(each, field=reference_network, **PATHS[path])
    np.testing.assert_allclose(
        solve_network([LagMatrix(TAUS)], **PATHS[path]), expected, rtol=1e-12
    )


def test_gradient_of_a_matrix_of_lags_matches_finite_differences(x64):
    loss = lambda taus: jnp.sum(solve_network([LagMatrix(taus)], steps=2, intervals=8) ** 2)
    gradient = jax.jit(jax.grad(loss))(jnp.asarray(TAUS))
    final = jax.jit(loss)
    for i in range(3):
        for j in range(3):
            move = np.zeros((3, 3))
            move[i, j] = 1e-6
            slope = (final(TAUS + move) - final(TAUS - move)) / 2e-6
            np.testing.assert_allclose(gradient[i, j], slope, rtol=1e-6)


def test_pairs_without_a_link_are_zero_and_may_have_no_lag(x64):
    mask = ~np.eye(3, dtype=bool)
    taus = np.where(mask, TAUS, 0.0)
    delays = [LagMatrix(taus, links=mask)]
    expected = solve_network([LagMatrix(TAUS)], jnp.where(mask, WEIGHTS, 0.0), steps=20)
    np.testing.assert_allclose(solve_network(delays, steps=20), expected, rtol=1e-9)


def test_list_of_links_gives_a_row(x64):
    i, j = np.nonzero(~np.eye(3, dtype=bool))

    def field(t, y, weights, *, history):
        signals = weights[i, j] * jnp.sin(history[0])
        return -y + jax.ops.segment_sum(signals, i, num_segments=3)

    mask = ~np.eye(3, dtype=bool)
    got = solve_network([LagMatrix(TAUS[i, j], links=(i, j))], field=field, steps=4)
    expected = solve_network([LagMatrix(TAUS, links=mask)], steps=4)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_rows_of_the_state_are_nodes(x64):
    """Two copies of the network along a second axis."""

    def field(t, y, weights, *, history):
        return -y + jnp.sum(weights[:, :, None] * jnp.sin(history[0]), axis=1)

    both = lambda t: jnp.stack([past(t), 0.5 * past(t)], axis=1)
    got = lagrax.solve(field, 0.0, 2.0, both, WEIGHTS, delays=[LagMatrix(TAUS)], steps=3).ys[0]
    np.testing.assert_allclose(got[:, 0], solve_network([LagMatrix(TAUS)], steps=3), rtol=1e-12)


# --- slopes ---------------------------------------------------------------------------------------


def neutral(t, y, args, *, history):
    """z' = z'(t - 1) / 2 - z, whose solution from z = 1 is known piece by piece."""
    return 0.5 * history[0] - y


def exact_neutral(t):
    """By hand: on [0, 1] the delayed slope is 0, on [1, 2] it is -exp(-(t - 1))."""
    first = np.exp(-t)
    second = np.exp(-(t - 1)) * (np.exp(-1) - 0.5 * (t - 1))
    return np.where(t <= 1, first, second)


@pytest.mark.parametrize("path", PATHS)
def test_neutral_equation_matches_its_closed_form(path, x64):
    options = {"steps": 16} if path == "equal steps" else {"stepsize_controller": TIGHT}
    ts = np.array([0.3, 0.9, 1.0, 1.2, 1.7, 2.0])
    sol = lagrax.solve(
        *(neutral, 0.0, 2.0, 1.0),
        delays=[Slope(1.0)],
        saveat=diffrax.SaveAt(ts=ts),
        **options,
    )
    np.testing.assert_allclose(sol.ys, exact_neutral(ts), atol=2e-8)


GROWTH = -0.7
SHARE = GROWTH * (1 - 0.5 * np.exp(-GROWTH * 0.7))


def exponential(t, y, args, *, history):
    """Its solution is exp(GROWTH t)."""
    return 0.5 * history[0] + SHARE * y


@pytest.mark.parametrize(
    ("solver", "least"), [(diffrax.Bosh3(), 2.8), (diffrax.Tsit5(), 3.8), (diffrax.Kvaerno3(), 2.8)]
)
def test_order_with_a_delayed_slope(solver, least, x64):
    errors = []
    for n in (2, 4, 8):
        sol = lagrax.solve(
            *(exponential, 0.0, 3.0, lambda t: jnp.exp(GROWTH * t)),
            delays=[Slope(0.7), Hold(0.45)],
            solver=solver,
            steps=n,
        )
        errors.append(abs(sol.ys[0] - np.exp(3 * GROWTH)))
    assert np.log2(errors[-2] / errors[-1]) > least


def test_kinks_of_a_neutral_equation_come_back_after_every_lag(x64):
    """The solution has a kink at every multiple of the lag, however many there are."""
    sol = lagrax.solve(neutral, 0.0, 12.0, 1.0, delays=[Slope(1.0), Hold(100.0)], steps=2)
    assert set(range(13)) <= set(np.round(np.asarray(sol.knots.ts), 9))
    slopes = lagrax.solve(
        *(lambda t, y, args, *, history: history[0][0] - 0.5 * history[0][1], 0.0, 2.0, 1.0),
        delays=[Slope([0.3, 0.7])],
        steps=1,
    )
    sums = {round(0.3 * i + 0.7 * j, 9) for i in range(7) for j in range(3)}
    assert {s for s in sums if s < 2} <= set(np.round(np.asarray(slopes.knots.ts), 9))


# --- all kinds at once ----------------------------------------------------------------------------


class Gamma(eqx.Module):
    rate: jax.Array

    def __call__(self, s):
        return self.rate**2 * s * jnp.exp(-self.rate * s)


def everything(t, y, p, *, history):
    row, held, faded, network, slope, command = history
    return (
        -p["a"] * y
        + 0.3 * jnp.sin(row[0] - row[1] * held)
        + 0.4 * faded
        + 0.2 * jnp.sum(WEIGHTS[:2, :2] * network, axis=1)
        + 0.1 * slope * jnp.cos(t)
        + command
    )


def parameters():
    """No two sums of these lags coincide, at which there would be no derivative."""
    values = {"a": 0.8, "tau": 0.7713, "rate": 2.0, "upto": 3.1416, "amount": 0.4, "pulse": 1.3}
    matrix = jnp.array([[0.6133, 1.1071], [0.7687, 0.9397]])
    return jax.tree.map(jnp.asarray, values | {"matrix": matrix})


def solve_everything(p, gradient, **options):
    delays = [
        Lag(p["tau"] * jnp.array([1.0, 1.4521])),
        Hold(0.8917),
        Distributed(Gamma(p["rate"]), p["upto"], nodes=4),
        LagMatrix(p["matrix"]),
        Slope(0.9511 * p["tau"]),
        Input([0.4142, 1.0986], np.array([[0.1], [-0.2]])),
    ]
    return lagrax.solve(
        *(everything, 0.0, 2.2, lambda t: past(p["pulse"] * t)[:2], p),
        delays=delays,
        jumps=[Jump([0.6931], add=p["amount"] * jnp.ones((1, 2)))],
        gradient=gradient,
        intervals=5,
        **options,
    ).ys[0]


CASES = PATHS | {"implicit": {"solver": diffrax.Kvaerno3(), "steps": 2}}


# Adaptive steps take long to compile, and have tests of their own for every kind.
@pytest.mark.parametrize(
    "case",
    [c if c == "equal steps" else pytest.param(c, marks=pytest.mark.slow) for c in CASES],
)
def test_gradients_match_each_other_and_finite_differences(case, x64):
    p, options = parameters(), CASES[case]
    loss = lambda p, gradient: jnp.sum(jnp.sin(3 * solve_everything(p, gradient, **options)))
    evaluate = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    value, expected = evaluate(p, Direct())
    same, got = evaluate(p, Checkpointed())
    np.testing.assert_allclose(same, value, rtol=1e-12)
    direction = jax.random.normal(jax.random.key(1), (2, 2))
    for name in p:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-8, err_msg=name)
        assert np.all(np.abs(got[name]) > 1e-6), name
        if "steps" in options:
            move = 1e-6 * (direction if name == "matrix" else 1.0)
            up, down = (
                evaluate(p | {name: p[name] + s * move}, Checkpointed())[0] for s in (1, -1)
            )
            slope = np.sum(got[name] * move)
            np.testing.assert_allclose(slope, (up - down) / 2, rtol=1e-5, err_msg=name)


def test_a_batch_equals_a_loop_in_float32():
    final = lambda tau: solve_everything(parameters() | {"tau": tau}, Checkpointed(), steps=2)
    taus = jnp.array([0.6, 0.8])
    each = jnp.stack([jax.jit(final)(tau) for tau in taus])
    np.testing.assert_allclose(jax.jit(jax.vmap(final))(taus), each, rtol=1e-5)
    assert each.dtype == jnp.float32


# --- parts of the state ---------------------------------------------------------------------------


def tank(t, y, args, *, history):
    total, held, slope, faded, network = history
    low = -y["low"] + 0.5 * jnp.sin(total) + 0.1 * slope + 0.1 * network[0, 1]
    return {"low": low, "high": y["low"] - 0.3 * held * y["high"] + 0.2 * faded}


def tank_of_whole_states(add, multiply):
    def field(t, y, args, *, history):
        lagged, held, slope, faded, network = history
        parts = add(lagged), multiply(held), add(slope), add(faded)
        return tank(t, y, args, history=(*parts, jnp.array([[0.0, network["high"][0]]])))

    return field


def solve_tank(rate, gradient, by_parts, **options):
    add = lambda y: y["low"] + rate * y["high"]
    multiply = lambda y: y["low"] * y["high"]
    levels = lambda y: jnp.stack([y["low"], y["high"]])
    of = lambda function: {"of": function} if by_parts else {}
    delays = [
        Lag(0.7, **of(add)),
        Hold(0.5, **of(multiply)),
        Slope(0.6, **of(add)),
        Distributed(lambda s: jnp.exp(-s), 3.0, nodes=4, **of(add)),
        LagMatrix([[0.9, 0.8], [0.9, 0.9]], of=levels) if by_parts else Lag([0.8, 0.9]),
    ]
    field = tank if by_parts else tank_of_whole_states(add, multiply)
    start = lambda t: {"low": jnp.cos(t), "high": 0.5 + 0.1 * t}
    sol = lagrax.solve(field, 0.0, 2.0, start, delays=delays, gradient=gradient, **options)
    return sum(jnp.sum(x) for x in jax.tree.leaves(sol.ys))


@pytest.mark.parametrize(
    ("gradient", "options"),
    [
        (Checkpointed(), {"steps": 2}),
        pytest.param(Checkpointed(), {"max_steps": 100}, marks=pytest.mark.slow),
        pytest.param(Direct(), {"steps": 2}, marks=pytest.mark.slow),
        pytest.param(Direct(), {"max_steps": 100}, marks=pytest.mark.slow),
        pytest.param(
            Checkpointed(), {"steps": 2, "solver": diffrax.Kvaerno3()}, marks=pytest.mark.slow
        ),
    ],
)
def test_parts_of_the_state_equal_those_of_whole_states(gradient, options, x64):
    """The parts that lags read are linear here, so that polynomials of parts are exact."""
    by_parts, by_states = (
        jax.jit(jax.value_and_grad(lambda rate: solve_tank(rate, gradient, which, **options)))(1.5)  # noqa: B023
        for which in (True, False)
    )
    np.testing.assert_allclose(by_parts, by_states, rtol=1e-9)


def test_part_that_is_not_linear_keeps_the_order(x64):
    """z = exp(sin t) solves z' = cos(t) z, where z follows from the logarithm of z(t - 1)."""
    exact = lambda t: jnp.exp(jnp.sin(t))

    def field(t, y, args, *, history):
        return jnp.cos(t) * jnp.exp(history[0] + jnp.sin(t) - jnp.sin(t - 1))

    errors = []
    for n in (2, 4, 8):
        sol = lagrax.solve(field, 0.0, 3.0, exact, delays=[Lag(1.0, of=jnp.log)], steps=n)
        errors.append(abs(sol.ys[0] - exact(3.0)))
    assert np.log2(errors[1] / errors[2]) > 3.8
    assert errors[2] < 1e-6


def test_part_of_a_large_state_keeps_that_part_alone():
    """A state of 1,000 numbers, of which one is lagged."""
    steps = 256

    def loss(y0):
        def field(t, y, args, *, history):
            return {
                "field": -y["field"] * history[0],
                "level": jnp.sin(history[0]) - y["level"] + jnp.mean(y["field"]),
            }

        delays = [Lag(1.0, of=lambda y: y["level"])]
        sol = lagrax.solve(field, 0.0, 20.0, y0, delays=delays, max_steps=steps, throw=False)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(sol.ys))

    y0 = {"field": jnp.ones(1000), "level": jnp.asarray(1.0)}
    state = 4 * 1001 * steps
    memory = lambda f: jax.jit(f).lower(y0).compile().memory_analysis().temp_size_in_bytes
    assert memory(loss) < 0.1 * state
    # The starts of steps, and the first slope of each.
    assert memory(jax.grad(loss)) < 2.3 * state
