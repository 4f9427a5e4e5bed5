"""All gradients against finite differences and against Theorem 2 written out by hand."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import lagrax
from lagrax import Adjoint, Checkpointed, Direct, Hold, Lag, holds

TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-12)
WAYS = {"direct": Direct(), "checkpointed": Checkpointed(), "adjoint": Adjoint()}
PATHS = {"adaptive": {"stepsize_controller": TIGHT}, "fixed": {"steps": 12}}
# Adaptive solves take long to compile; other tests have them too.
MOSTLY_FIXED = [pytest.param("adaptive", marks=pytest.mark.slow), "fixed"]
A = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6)) * 0.6)


def field(t, y, weights, *, history):
    return jnp.tanh(weights @ jnp.concatenate([y, *history])) * jnp.cos(0.3 * t) - 0.1 * y


def many_times(gradient, options, **solve_options):
    """A loss at many times, on and off knots, as a function of all trainable numbers."""

    def loss(p):
        delays = [Hold(p.get("tau", 0.8), lag=j) for j in (0, 1)]
        sol = lagrax.solve(
            field,
            0.0,
            p.get("t1", 2.9),
            p["y0"],
            p["weights"],
            delays=delays,
            gradient=gradient,
            saveat=diffrax.SaveAt(ts=np.array([0.0, 0.35, 0.8, 1.1, 1.15, 2.33]), t1=True),
            **options,
            **solve_options,
        )
        return jnp.sum(jnp.sin(sol.ys * jnp.arange(1.0, 8.0)[:, None]))

    return loss


def finite_differences(loss, p, eps=1e-5):
    flat, unravel = jax.flatten_util.ravel_pytree(p)
    loss = jax.jit(loss)
    rows = []
    for i in range(flat.shape[0]):
        up, down = (loss(unravel(flat.at[i].add(s * eps))) for s in (1, -1))
        rows.append((up - down) / (2 * eps))
    return jnp.stack(rows)


def ravel(tree):
    return jax.flatten_util.ravel_pytree(tree)[0]


def test_all_gradients_agree_with_finite_differences(x64):
    p = {"weights": A.astype(float), "y0": jnp.array([0.3, -0.2])}
    measured = finite_differences(many_times(Direct(), PATHS["fixed"]), p)
    # With twelve steps of order five the equation's gradient differs from the program's.
    for path, loose in (("adaptive", 1e-7), ("fixed", 1e-5)):
        losses = {way: many_times(gradient, PATHS[path]) for way, gradient in WAYS.items()}
        grads = {way: ravel(jax.grad(loss)(p)) for way, loss in losses.items()}
        direct = grads["direct"]
        np.testing.assert_allclose(direct, measured, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(grads["checkpointed"], direct, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(grads["adjoint"], direct, rtol=loose, atol=loose)
        # Forward mode.
        _, slope = jax.jvp(losses["direct"], (p,), (jax.tree.map(jnp.ones_like, p),))
        np.testing.assert_allclose(slope, jnp.sum(direct), rtol=1e-10)


@pytest.mark.parametrize("path", MOSTLY_FIXED)
def test_gradient_of_the_period_and_of_the_final_time(path, x64):
    p = {"weights": A.astype(float), "y0": jnp.array([0.3, -0.2]), "tau": 0.83, "t1": 2.9}
    p = jax.tree.map(jnp.asarray, p)
    measured = finite_differences(many_times(Checkpointed(), PATHS[path], intervals=4), p)
    for way, gradient in WAYS.items():
        got = ravel(jax.grad(many_times(gradient, PATHS[path], intervals=4))(p))
        np.testing.assert_allclose(got, measured, rtol=1e-4, atol=1e-5, err_msg=way)


@pytest.mark.parametrize("path", MOSTLY_FIXED)
@pytest.mark.parametrize("way", WAYS)
def test_a_sample_on_a_knot_has_the_derivative_from_the_left(way, path, x64):
    """At t = tau = 1 the solution has a kink in t and in tau, so their mean is wrong."""

    def sample(t, tau):
        return lagrax.solve(
            lambda t, x, args, *, history: 2.0 * x * (1 - history[0]),
            0.0, 2.0, 0.5, delays=[Hold(tau)], intervals=3, gradient=WAYS[way],
            saveat=diffrax.SaveAt(ts=t[None]), **PATHS[path],
        ).ys[0]  # fmt: skip

    by_time, by_tau = jax.grad(sample, argnums=(0, 1))(jnp.asarray(1.0), jnp.asarray(1.0))
    np.testing.assert_allclose(by_time, 2.0 * 0.5 * 0.5 * np.exp(1.0), rtol=1e-4)
    np.testing.assert_allclose(by_tau, 0.0, atol=1e-4)


@pytest.mark.parametrize("path", MOSTLY_FIXED)
def test_lag_gradients_of_field_past_and_delay(path, x64):
    def loss(p, gradient):
        past = lambda t: p["mean"] + 0.3 * jnp.sin(p["pulse"] * t)
        hutchinson = lambda t, x, a, *, history: a * x * (1 - history[0])
        sol = lagrax.solve(
            hutchinson,
            0.0,
            2.2,
            past,
            p["a"],
            delays=[Lag(p["tau"])],
            intervals=4,
            gradient=gradient,
            saveat=diffrax.SaveAt(ts=np.array([0.5, 1.3, 2.2])),
            max_steps=100,
            **PATHS[path],
        )
        return jnp.sum(sol.ys * jnp.array([1.0, -2.0, 0.5]))

    p = {"a": 1.6, "mean": 0.7, "pulse": 2.0, "tau": 0.9}
    p = jax.tree.map(jnp.asarray, p)
    direct, checkpointed = (jax.grad(loss)(p, g) for g in (Direct(), Checkpointed()))
    # Not closer: at a step's end either neighbour's interpolant may answer, by rounding, and their
    # derivatives differ by the tolerance.
    np.testing.assert_allclose(ravel(checkpointed), ravel(direct), rtol=1e-8)
    measured = finite_differences(lambda p: loss(p, Checkpointed()), p)
    np.testing.assert_allclose(ravel(direct), measured, rtol=2e-5, atol=1e-6)


SEVERAL = {
    "apart": (lambda p: [Lag(p[0]), Lag(p[1])], [0.7, 1.1]),
    "twice the other": (lambda p: [Lag(p[0]), Lag(p[1])], [0.8, 1.6]),
    "equal": (lambda p: [Lag(p[0]), Lag(p[1])], [1.0, 1.0]),
    "three": (lambda p: [Lag(p[0]), Lag(p[1]), Lag(p[2])], [0.6, 0.9, 0.3]),
    "one is known": (lambda p: [Lag(0.5), Lag(p[0])], [1.0]),
    "with a clock": (lambda p: [Lag(p[0]), Lag(p[1]), Hold(1.0)], [2.0, 1.0]),
}


# The others are special cases of these.
OFTEN = ("three", "with a clock")


@pytest.mark.parametrize(
    "case", [c if c in OFTEN else pytest.param(c, marks=pytest.mark.slow) for c in SEVERAL]
)
def test_several_traced_lags(case, x64):
    """Most kinks coincide, and intervals there have no length. The solution is differentiable."""
    make, taus = SEVERAL[case]

    def field(t, y, args, *, history):
        return -history[0] * jnp.cos(y) - 0.5 * history[1] + 0.3 * sum(history[2:])

    def final(taus):
        return lagrax.solve(field, 0.0, 3.7, 1.0, delays=make(taus), intervals=13, steps=6).ys[0]

    taus = jnp.array(taus)
    measured = finite_differences(final, taus)
    np.testing.assert_allclose(jax.jit(jax.grad(final))(taus), measured, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("clock", [Hold(0.5), Hold(0.8), Hold(times=[1.0, 2.0])], ids=str)
def test_a_traced_lag_whose_kinks_meet_instants_of_a_hold(clock, x64):
    def final(tau):
        field = lambda t, y, args, *, history: -history[0] - 0.5 * history[1]
        return lagrax.solve(
            field, 0.0, 3.7, 1.0, delays=[Lag(tau), clock], intervals=9, steps=4
        ).ys[0]

    eps, final = 1e-5, jax.jit(final)
    measured = (final(1.0 + eps) - final(1.0 - eps)) / (2 * eps)
    np.testing.assert_allclose(jax.grad(final)(1.0), measured, rtol=1e-4)


HELD_OR_NOT = {"plain": ([], diffrax.Tsit5()), "hold": ([Hold(1.0)], diffrax.Dopri8())}
HELD_OR_NOT["implicit"] = ([Hold(1.0)], diffrax.Kvaerno3())
MOSTLY_PLAIN = ["plain", *(pytest.param(x, marks=pytest.mark.slow) for x in ("hold", "implicit"))]


@pytest.mark.parametrize("case", MOSTLY_PLAIN)
@pytest.mark.parametrize("way", WAYS)
def test_a_jump_of_the_field(way, case, x64):
    """x' = p0 - x before the jump at s, and p1 - x after it, differentiated by p and s."""
    delays, solver = HELD_OR_NOT[case]

    def run(p, s):
        return lagrax.solve(
            lambda t, x, p, *, history: jnp.where(t < s, p[0], p[1]) - x,
            0.0, 3.0, 0.5, p, delays=delays, solver=solver, gradient=WAYS[way],
            stepsize_controller=diffrax.ClipStepSizeController(
                diffrax.PIDController(rtol=1e-8, atol=1e-10), jump_ts=jnp.asarray(s)[None]
            ),
        ).ys[-1]  # fmt: skip

    def exact(p, s):
        at_jump = p[0] + (0.5 - p[0]) * jnp.exp(-s)
        return p[1] + (at_jump - p[1]) * jnp.exp(s - 3.0)

    at = jnp.array([1.0, 50.0]), 1.5
    value, gradient = jax.value_and_grad(run, argnums=(0, 1))(*at)
    np.testing.assert_allclose(value, exact(*at), rtol=1e-7)
    np.testing.assert_allclose(
        ravel(gradient), ravel(jax.grad(exact, argnums=(0, 1))(*at)), rtol=1e-5
    )


def test_reversible_heun_takes_the_same_steps_for_every_gradient(x64):
    """Its state is more than a slope and starts anew in each interval."""

    def run(gradient):
        return lagrax.solve(
            lambda t, x, args, *, history: -history[0] - x, 0.0, 3.0, 1.0, delays=[Lag(1.0)],
            solver=diffrax.ReversibleHeun(), gradient=gradient,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
        ).ys[-1]  # fmt: skip

    np.testing.assert_allclose(run(Direct()), run(Checkpointed()), rtol=1e-12)


@pytest.mark.parametrize("path", MOSTLY_FIXED)
@pytest.mark.parametrize("t1", [1.0, 3.0])
def test_a_past_of_infinite_slope_at_the_start(t1, path, x64):
    @jax.jit
    def run(tau):
        return lagrax.solve(
            lambda t, x, args, *, history: -history[0], 0.0, t1, lambda t: jnp.sqrt(-t),
            delays=[Lag(tau)], intervals=5, **PATHS[path],
        ).ys[-1]  # fmt: skip

    expected = (run(0.9 + 1e-5) - run(0.9 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(run)(0.9), expected, rtol=1e-4)


@pytest.mark.parametrize(("swapped", "side"), [(False, 1), (True, -1)])
def test_clocks_whose_instants_coincide(swapped, side, x64):
    """At tau = 1 all instants of the second clock are also instants of the first.

    The derivative is that from the side on which the later clock in `delays` changes later.
    """

    def final(tau, gradient):
        delays, order = [Hold(0.5), Hold(tau)], (0, 1)
        if swapped:
            delays, order = delays[::-1], (1, 0)
        field = lambda t, y, args, *, history: (
            -y + jnp.sin(history[order[0]]) - 2 * history[order[1]]
        )
        options = {"intervals": 9, "steps": 20, "gradient": gradient}
        return lagrax.solve(field, 0.0, 3.3, 1.0, delays=delays, **options).ys[-1]

    shift, run = 1e-6 * side, jax.jit(lambda tau: final(tau, Direct()))
    expected = (run(1.0 + shift) - run(1.0)) / shift
    for way, gradient in WAYS.items():
        found = jax.grad(final)(1.0, gradient)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=way)


def test_both_clocks_learned_from_where_they_coincide(x64):
    def final(taus, gradient):
        field = lambda t, y, args, *, history: -y + jnp.sin(history[0]) - history[1] ** 2
        delays = [Hold(taus[0]), Hold(taus[1], lag=1)]
        options = {"intervals": 9, "steps": 20, "gradient": gradient}
        return lagrax.solve(field, 0.0, 3.3, lambda t: 1 + 0.2 * t, delays=delays, **options).ys[-1]

    taus, run = jnp.array([0.5, 1.0]), jax.jit(lambda taus: final(taus, Direct()))
    expected = [(run(taus.at[i].add(s)) - run(taus)) / s for i, s in ((0, -1e-6), (1, 1e-6))]
    for way, gradient in WAYS.items():
        found = jax.grad(final)(taus, gradient)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=way)


@pytest.mark.parametrize("path", PATHS)
def test_the_end_on_a_knot(path, x64):
    """The last interval has no length, and its end moves with tau and t1."""

    def final(tau, t1, way):
        field = lambda t, y, a, *, history: a * y * (1 - history[0])
        options = {"intervals": 4, "gradient": WAYS[way]} | PATHS[path]
        return lagrax.solve(field, 0.0, t1, 0.5, 1.8, delays=[Hold(tau)], **options).ys[-1]

    run = jax.jit(lambda tau, t1: final(tau, t1, "direct"))
    one_sided = [
        (run(1.0 - 1e-6, 2.0) - run(1.0, 2.0)) / -1e-6,
        (run(1.0, 2.0 + 1e-6) - run(1.0, 2.0)) / 1e-6,
    ]
    for way in WAYS:
        found = jax.grad(final, argnums=(0, 1))(1.0, 2.0, way)
        np.testing.assert_allclose(found, one_sided, rtol=1e-4, err_msg=way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", PATHS)
def test_a_time_saved_at_the_start(way, path, x64):
    field = lambda t, y, a, *, history: a * y * (1 - history[0])
    saved = lambda ts: (
        lagrax.solve(
            field,
            0.0,
            2.5,
            0.5,
            1.8,
            delays=[Hold(1.0)],
            saveat=diffrax.SaveAt(ts=ts),
            gradient=WAYS[way],
            **PATHS[path],
        ).ys
    )
    slopes = jax.grad(lambda ts: saved(ts).sum())(jnp.array([0.0, 0.5]))
    expected = [1.8 * 0.5 * 0.5, 1.8 * 0.5 * 0.5 * np.exp(1.8 * 0.5 * 0.5)]
    np.testing.assert_allclose(slopes, expected, rtol=1e-4)


def test_hold_and_lag_together(x64):
    def loss(a, gradient):
        sol = lagrax.solve(
            lambda t, y, a, *, history: a * history[0] - y * history[1],
            0.0,
            2.0,
            lambda t: jnp.cos(a * t),
            a,
            delays=[Hold(0.5), Lag(0.7)],
            steps=8,
            gradient=gradient,
        )
        return sol.ys[-1]

    a, eps, run = jnp.asarray(0.9), 1e-5, jax.jit(lambda a: loss(a, Direct()))
    measured = (run(a + eps) - run(a - eps)) / (2 * eps)
    for gradient in (Direct(), Checkpointed()):
        np.testing.assert_allclose(jax.grad(loss)(a, gradient), measured, rtol=1e-7)


@pytest.mark.parametrize("path", MOSTLY_FIXED)
def test_gradient_of_the_past_that_is_held(path, x64):
    def loss(c, gradient):
        sol = lagrax.solve(
            lambda t, y, args, *, history: c * y * history[0] - history[1],
            0.3,
            2.0,
            lambda t: jnp.cos(c * t),
            delays=holds(0.5, 2),
            gradient=gradient,
            **PATHS[path],
        )
        return sol.ys[-1]

    c, eps, run = jnp.asarray(0.9), 1e-5, jax.jit(lambda c: loss(c, Direct()))
    measured = (run(c + eps) - run(c - eps)) / (2 * eps)
    for way, gradient in WAYS.items():
        found = jax.grad(loss)(c, gradient)
        np.testing.assert_allclose(found, measured, rtol=1e-5, err_msg=way)


def test_unshared_fields_that_close_over_their_parameters(x64):
    def loss(params, gradient):
        fields = [
            lambda t, y, args, *, history, w=w: jnp.tanh(w @ jnp.concatenate([y, history[0]]))
            for w in params
        ]
        sol = lagrax.solve(
            fields,
            0.0,
            1.5,
            jnp.array([0.3, -0.4]),
            delays=[Hold(0.5)],
            gradient=gradient,
            steps=10,
        )
        return jnp.sum(sol.ys**2)

    params = [A[:, :4] + i for i in range(3)]
    params = jax.tree.map(lambda x: x.astype(float), params)
    measured = finite_differences(lambda p: loss(p, Direct()), params)
    for way, gradient in WAYS.items():
        found = ravel(jax.grad(loss)(params, gradient))
        np.testing.assert_allclose(found, measured, rtol=1e-5, atol=1e-8, err_msg=way)


def _theorem_2(weights, z0, tau, n, observed):
    """Eqs. 15 and 16 for z' = f(z, z_k, z_{k-1}, ..., theta_k) with the held states that theta_k
    has room for, integrated by SciPy as the text says. The adjoint runs between knots, with
    quadratures for theta_k and for every held state, and jumps at knots and observation times. The
    loss is the sum of c . z(t) over the observation times."""

    def f(z, held, w):
        return np.tanh(w @ np.concatenate([z, *held])) - 0.2 * z

    def jacobians(z, held, w):
        x = np.concatenate([z, *held])
        s = 1 - np.tanh(w @ x) ** 2
        whole = s[:, None] * w
        size = len(z)
        parts = [whole[:, i * size : (i + 1) * size] for i in range(1 + len(held))]
        parts[0] = parts[0] - 0.2 * np.eye(size)
        return parts, s, x

    size = len(z0)
    seen = [w.shape[1] // size - 1 for w in weights]
    knots, forward = [z0], []
    options = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13, "dense_output": True}
    for k in range(n):
        held = [knots[max(k - j, 0)] for j in range(seen[k])]
        piece = solve_ivp(
            lambda t, z, h=held, k=k: f(z, h, weights[k]),
            (k * tau, k * tau + tau),
            knots[k],
            **options,
        )
        forward.append(piece)
        knots.append(piece.y[:, -1])

    a = np.zeros(size)
    jumps = [np.zeros(size) for _ in range(n + 1)]
    d_theta = [np.zeros_like(w) for w in weights]
    for k in reversed(range(n)):
        a = a + jumps[k + 1]
        held = [knots[max(k - j, 0)] for j in range(seen[k])]
        stops = sorted((t for t in observed if k * tau < t <= k * tau + tau), reverse=True)
        t = k * tau + tau
        for stop in [*stops, None]:
            target = k * tau if stop is None else stop

            def rhs(t, state, k=k, held=held):
                a = state[:size]
                parts, s, x = jacobians(forward[k].sol(t), held, weights[k])
                return np.concatenate(
                    [-a @ parts[0], *[-a @ part for part in parts[1:]], -np.outer(a * s, x).ravel()]
                )

            start = np.concatenate([a, np.zeros(seen[k] * size + weights[k].size)])
            if t > target:
                end = solve_ivp(rhs, (t, target), start, **options).y[:, -1]
                a = end[:size]
                for j in range(seen[k]):
                    jumps[max(k - j, 0)] += end[size * (1 + j) : size * (2 + j)]
                d_theta[k] += end[size * (1 + seen[k]) :].reshape(weights[k].shape)
                t = target
            if stop is not None:
                a = a + observed[stop]
    a = a + jumps[0] + observed.get(0.0, 0)
    return a, d_theta


@pytest.mark.parametrize(
    ("observed", "fields"),
    # A final observation is one of many, and fields that grow are not shared.
    [
        pytest.param("final", "shared", marks=pytest.mark.slow),
        ("many", "shared"),
        pytest.param("many", "unshared", marks=pytest.mark.slow),
        ("many", "growing"),
    ],
)
def test_adjoint_is_theorem_2(observed, fields, x64):
    """A field that all intervals share (eq. 13), one for each of them, and those of eq. 14, each of
    which sees all held states there are by then."""
    rng = np.random.default_rng(3)
    tau, n, size = 0.7, 3, 2
    shared, seen = fields == "shared", [1, 2, 3] if fields == "growing" else [3, 3, 3]
    weights = [rng.normal(size=(size, size * (1 + m))) * 0.5 for m in seen]
    weights = [weights[0]] * n if shared else weights
    z0 = rng.normal(size=size)
    times = [n * tau] if observed == "final" else [0.0, 0.3, 0.7, 1.0, 1.25, n * tau]
    costs = {t: rng.normal(size=size) for t in times}

    def loss(params, z0):
        fields = [
            lambda t, z, args, *, history, w=w: (
                jnp.tanh(w @ jnp.concatenate([z, *history[: w.shape[1] // size - 1]])) - 0.2 * z
            )
            for w in params
        ]
        sol = lagrax.solve(
            fields[0] if shared else fields,
            0.0,
            n * tau,
            z0,
            delays=holds(tau, n),
            gradient=Adjoint(),
            stepsize_controller=TIGHT,
            saveat=diffrax.SaveAt(ts=np.array(times)),
        )
        return sum(jnp.dot(jnp.asarray(costs[t]), y) for t, y in zip(times, sol.ys, strict=True))

    params = [jnp.asarray(w) for w in (weights[:1] if shared else weights)]
    d_params, d_z0 = jax.grad(loss, argnums=(0, 1))(params, jnp.asarray(z0))
    a, d_theta = _theorem_2(weights, z0, tau, n, costs)
    np.testing.assert_allclose(d_z0, a, rtol=1e-7)
    if shared:
        d_theta = [sum(d_theta)]
    for got, expected in zip(d_params, d_theta, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_adjoint_converges_as_the_tolerance_tightens(x64):
    def loss(a, gradient, **options):
        sol = lagrax.solve(
            lambda t, x, a, *, history: a * x * (1 - history[0]) * jnp.cos(5 * t),
            0.0, 3.0, 0.5, a, delays=[Hold(1.5)], gradient=gradient, **options,
        )  # fmt: skip
        return sol.ys[-1]

    exact = jax.grad(loss)(2.0, Direct(), solver=diffrax.Dopri8(), steps=100)
    errors = []
    for rtol in (1e-3, 1e-5, 1e-7):
        control = diffrax.PIDController(rtol=rtol, atol=rtol)
        errors.append(abs(jax.grad(loss)(2.0, Adjoint(), stepsize_controller=control) - exact))
    assert errors[0] > 10 * errors[1] > 100 * errors[2] > 0
    assert errors[2] < 1e-5


@pytest.mark.slow
def test_adjoint_with_a_solver_and_control_of_its_own(x64):
    p = {"weights": A.astype(float), "y0": jnp.array([0.3, -0.2])}
    own = Adjoint(diffrax.Dopri8(), diffrax.PIDController(rtol=1e-10, atol=1e-12))
    exact = ravel(jax.grad(many_times(Checkpointed(), PATHS["adaptive"]))(p))
    np.testing.assert_allclose(
        ravel(jax.grad(many_times(own, PATHS["adaptive"]))(p)), exact, rtol=1e-6, atol=1e-7
    )
    # Forward in equal steps, backward adaptive.
    np.testing.assert_allclose(
        ravel(jax.grad(many_times(own, PATHS["fixed"]))(p)), exact, rtol=1e-5, atol=1e-6
    )


def test_a_backward_pass_that_does_not_arrive_gives_nan(x64):
    def loss(a):
        sol = lagrax.solve(
            lambda t, y, a, *, history: -a * y + history[0],
            0.0,
            1.0,
            1.0,
            a,
            delays=[Hold(1.0)],
            gradient=Adjoint(stepsize_controller=diffrax.PIDController(rtol=1e-13, atol=1e-13)),
            max_steps=20,
        )
        return sol.ys[-1]

    assert np.isfinite(loss(1.0))
    assert np.isnan(jax.grad(loss)(1.0))


def test_second_derivatives(x64):
    def final(a, gradient, **options):
        return lagrax.solve(
            lambda t, x, a, *, history: a * x * (1 - history[0]),
            0.0, 2.0, 0.5, a, delays=[Hold(1.0)], gradient=gradient, **options,
        ).ys[-1]  # fmt: skip

    f = lambda x, a: x * jnp.exp(a * (1 - x))
    expected = jax.hessian(lambda a: f(f(0.5, a), a))(1.3)
    for gradient in (Direct(), Checkpointed()):
        second = jax.grad(jax.grad(final))(1.3, gradient, steps=12)
        np.testing.assert_allclose(second, expected, rtol=1e-5)
    adaptive = jax.hessian(final)(1.3, Checkpointed(), stepsize_controller=TIGHT)
    np.testing.assert_allclose(adaptive, expected, rtol=1e-6)


def test_gradients_are_those_of_the_closed_form(x64):
    """The population map, applied three times, is differentiated by a."""

    def final(a, gradient):
        return lagrax.solve(
            lambda t, x, a, *, history: a * x * (1 - history[0]),
            0.0, 3.0, 0.5, a, delays=[Hold(1.0)], stepsize_controller=TIGHT, gradient=gradient,
        ).ys[-1]  # fmt: skip

    f = lambda x, a: x * jnp.exp(a * (1 - x))
    expected = jax.grad(lambda a: f(f(f(0.5, a), a), a))(3.2)
    for gradient in WAYS.values():
        np.testing.assert_allclose(jax.grad(final)(3.2, gradient), expected, rtol=1e-6)


@pytest.mark.slow
def test_complex_gradients_agree(x64):
    def loss(w, gradient):
        sol = lagrax.solve(
            lambda t, z, w, *, history: 1j * w * z + 0.3 * history[0],
            0.0, 2.0, 1.0 + 0.5j, w, delays=[Hold(1.0)], gradient=gradient,
            stepsize_controller=TIGHT,
        )  # fmt: skip
        return jnp.abs(sol.ys[-1]) ** 2

    eps = 1e-6
    measured = (loss(2.0 + eps, Direct()) - loss(2.0 - eps, Direct())) / (2 * eps)
    for gradient in WAYS.values():
        np.testing.assert_allclose(jax.grad(loss)(2.0, gradient), measured, rtol=1e-7)


def test_implicit_solver_gradients(x64):
    def loss(a, gradient):
        sol = lagrax.solve(
            lambda t, y, a, *, history: -a * (y**3 - history[0]),
            0.0, 1.0, 1.5, a, delays=[Hold(0.5)], solver=diffrax.Kvaerno5(), gradient=gradient,
            stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-10), max_steps=512,
        )  # fmt: skip
        return sol.ys[-1]

    eps, run = 1e-4, jax.jit(lambda a: loss(a, Checkpointed()))
    measured = (run(3.0 + eps) - run(3.0 - eps)) / (2 * eps)
    for gradient in (Checkpointed(), Adjoint()):
        np.testing.assert_allclose(jax.grad(loss)(3.0, gradient), measured, rtol=1e-4)


class FieldWithHold(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def hold(self, history):
        return self.first.weight[:, 1:] @ jnp.stack(history) + self.first.bias

    def __call__(self, t, y, args, *, history):
        return self.second(jnp.tanh(self.first.weight[:, 0] * y + history))[0]


@pytest.mark.parametrize("path", MOSTLY_FIXED)
def test_a_module_with_hold_is_differentiated_with_respect_to_its_leaves(path, x64):
    keys = jax.random.split(jax.random.key(0), 2)
    model = FieldWithHold(eqx.nn.Linear(3, 5, key=keys[0]), eqx.nn.Linear(5, 1, key=keys[1]))
    model = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, model)

    def loss(model, gradient):
        sol = lagrax.solve(
            model, 0.0, 1.7, 0.4, delays=holds(0.5, 2), gradient=gradient, **PATHS[path]
        )
        return sol.ys[-1] ** 2

    grads = {w: ravel(eqx.filter_grad(loss)(model, g)) for w, g in WAYS.items()}
    measured = finite_differences(
        lambda p: loss(
            eqx.combine(p, eqx.filter(model, eqx.is_inexact_array, inverse=True)), Direct()
        ),
        eqx.filter(model, eqx.is_inexact_array),
    )
    for way, got in grads.items():
        np.testing.assert_allclose(got, measured, rtol=1e-4, atol=1e-8, err_msg=way)


@pytest.mark.parametrize("way", WAYS)
def test_vmapped_gradients_equal_a_loop(way, x64):
    def loss(y0, a):
        sol = lagrax.solve(
            lambda t, x, a, *, history: a * x * (1 - history[0]),
            0.0, 2.0, y0, a, delays=[Hold(1.0)], gradient=WAYS[way],
            saveat=diffrax.SaveAt(ts=np.array([0.5, 1.5, 2.0])),
        )  # fmt: skip
        return jnp.sum(sol.ys)

    y0s, rates = jnp.array([0.3, 0.8, 1.5]), jnp.array([1.0, 2.0, 2.5])
    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))
    batched = jax.vmap(slopes)(y0s, rates)
    for i in range(3):
        single = slopes(y0s[i], rates[i])
        np.testing.assert_allclose(batched[0][i], single[0], rtol=1e-9)
        np.testing.assert_allclose(batched[1][i], single[1], rtol=1e-9)


def _peak(gradient, steps, width=64):
    w = jnp.ones((width, 2 * width)) / width

    def loss(w):
        sol = lagrax.solve(
            lambda t, y, w, *, history: jnp.tanh(w @ jnp.concatenate([y, history[0]])),
            0.0, 10.0, jnp.ones(width), w, delays=[Hold(1.0)], gradient=gradient, steps=steps,
            throw=False,
        )  # fmt: skip
        return jnp.sum(sol.ys)

    analysis = jax.jit(jax.grad(loss)).lower(w).compile().memory_analysis()
    return analysis.temp_size_in_bytes


def test_a_batch_inside_a_jitted_jacobian(x64):
    """Some of the numbers are mapped, others are not."""

    def ends(p):
        def end(scale):
            return lagrax.solve(
                lambda t, y, a, *, history: -a * history[0], 0.0, 2.0, 1.0, scale * p[1],
                delays=[Hold(p[0])], intervals=4, steps=2,
            ).ys[-1]  # fmt: skip

        return jax.vmap(end)(jnp.array([1.0, 2.0]))

    p = jnp.array([0.7, 0.9])
    exact = finite_differences(ends, p).T
    np.testing.assert_allclose(jax.jit(jax.jacfwd(ends))(p), exact, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.jacrev(ends))(p), exact, rtol=1e-6)


def test_memory_of_the_gradients():
    """Direct keeps all steps, Checkpointed the starts of one interval's, Adjoint none."""
    growth = {way: _peak(g, 200) - _peak(g, 10) for way, g in WAYS.items()}
    state = 4 * 64
    assert growth["direct"] > 100 * growth["checkpointed"]
    assert 190 * state <= growth["checkpointed"] < 3 * 190 * state
    assert growth["adjoint"] < 10 * state


def test_adjoint_of_a_small_loss(x64):
    """The adjoint is linear in the loss, whatever its scale."""
    field = lambda t, x, a, *, history: a * x * (1 - history[0])

    def end(a, unit):
        sol = lagrax.solve(field, 0.0, 2.5, 0.4, a, delays=[Hold(1.0)], gradient=Adjoint())
        return unit * sol.ys[-1]

    whole, small = (jax.grad(end)(1.5, unit) for unit in (1.0, 1e-9))
    np.testing.assert_allclose(small / 1e-9, whole, rtol=1e-12)


PID = diffrax.PIDController
CONTROLLERS = {
    "NumPy's numbers": lambda: PID(rtol=np.float64(1e-7), atol=np.float64(1e-9)),
    "arrays": lambda: PID(rtol=jnp.asarray(1e-7), atol=jnp.asarray(1e-9)),
    "a clip": lambda: diffrax.ClipStepSizeController(PID(1e-7, 1e-9), step_ts=[0.3, 1.5]),
    "a clip with jumps": lambda: diffrax.ClipStepSizeController(PID(1e-7, 1e-9), jump_ts=[1.5]),
}


@pytest.mark.parametrize(
    ("name", "own"),
    [*((name, False) for name in CONTROLLERS), ("arrays", True), ("a clip with jumps", True)],
)
def test_adjoint_with_a_controller_that_holds_arrays(name, own, x64):
    def final(a):
        # The controller is that of the solve, or of the backward pass alone.
        control = CONTROLLERS[name]()
        gradient = Adjoint(stepsize_controller=control) if own else Adjoint()
        options = {"steps": 30} if own else {"stepsize_controller": control}
        return lagrax.solve(
            lambda t, y, a, *, history: a * y * (1 - history[0]),
            0.0, 2.0, 0.5, a, delays=[Hold(1.0)], gradient=gradient, **options,
        ).ys[-1]  # fmt: skip

    f = lambda x, a: x * jnp.exp(a * (1 - x))
    expected = jax.grad(lambda a: f(f(0.5, a), a))(1.3)
    np.testing.assert_allclose(jax.grad(final)(1.3), expected, rtol=1e-5)


def test_checkpointed_with_an_implicit_solver_and_tolerances_that_are_arrays(x64):
    def final(a, rtol):
        control = PID(rtol=rtol, atol=1e-9)
        return lagrax.solve(
            lambda t, y, a, *, history: -a * y + history[0],
            0.0, 1.0, 0.5, a, delays=[Hold(1.0)], solver=diffrax.Kvaerno3(),
            stepsize_controller=control, max_steps=512,
        ).ys[-1]  # fmt: skip

    exact = lambda a: 0.5 / a + (0.5 - 0.5 / a) * jnp.exp(-a)
    slope = jax.jit(jax.grad(final))(1.3, 1e-7)
    np.testing.assert_allclose(slope, jax.grad(exact)(1.3), rtol=1e-5)


# `test_second_derivatives` has a hold.
@pytest.mark.parametrize("delay", [pytest.param(Hold, marks=pytest.mark.slow), Lag])
def test_second_derivatives_at_many_times(delay, x64):
    """Forward over reverse, as `jax.hessian` does it."""
    ts = np.array([0.2, 0.3, 0.9, 1.0, 1.4, 2.0])

    def loss(p):
        sol = lagrax.solve(
            lambda t, y, p, *, history: -p[0] * y + p[1] * history[0] * jnp.cos(t),
            0.0, 2.0, 1.0, p, delays=[delay(1.0)], gradient=Checkpointed(), max_steps=50,
            saveat=diffrax.SaveAt(ts=ts),
        )  # fmt: skip
        return jnp.sum(sol.ys * jnp.cos(jnp.arange(len(ts))))

    p = jnp.array([1.3, 0.7])
    second, slope = jax.jit(jax.hessian(loss))(p), jax.jit(jax.grad(loss))
    for i in (0, 1):
        step = jnp.zeros(2).at[i].set(1e-5)
        differences = (slope(p + step) - slope(p - step)) / 2e-5
        np.testing.assert_allclose(second[i], differences, rtol=1e-4)
