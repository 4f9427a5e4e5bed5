"""Failed solves: the result, the message, NaN states and NaN gradients."""

import subprocess
import sys

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lagrax
from lagrax import Adjoint, Checkpointed, Direct, Hold

NAN, INF = float("nan"), float("inf")


def field(t, y, args, *, history):
    return -y + sum(history)


def solve(f=field, t0=0.0, t1=2.0, y0=1.0, **options):
    options.setdefault("delays", [Hold(1.0)])
    return lagrax.solve(f, t0, t1, y0, **options)


def at(*ts):
    return diffrax.SaveAt(ts=np.array(ts))


@pytest.mark.parametrize("gradient", [Checkpointed(), Adjoint()], ids=["checkpointed", "adjoint"])
@pytest.mark.parametrize("transform", [jax.jvp, jax.jacfwd], ids=["jvp", "jacfwd"])
def test_forward_mode_without_direct_names_direct(transform, gradient):
    end = lambda y0: solve(y0=y0, gradient=gradient).ys[-1]
    with pytest.raises(TypeError, match=r"forward mode.*gradient=lagrax\.Direct\(\)"):
        transform(end, (1.0,), (1.0,)) if transform is jax.jvp else transform(end)(1.0)


def test_forward_mode_through_a_field_without_one_is_not_explained():
    """`Direct` is not the remedy for a field with a backward pass of its own."""

    @jax.custom_vjp
    def decay(y):
        return -y

    decay.defvjp(lambda y: (-y, None), lambda _, cotangent: (-cotangent,))
    end = lambda y0: lagrax.solve(lambda t, y, args: decay(y), 0, 1, y0, gradient=Direct()).ys[-1]
    with pytest.raises(TypeError, match="custom_vjp") as caught:
        jax.jvp(end, (1.0,), (1.0,))
    assert "lagrax.Direct()" not in str(caught.value)


def test_a_blow_up_does_not_ask_for_more_steps_first(x64):
    """x' = x^2 from 1 is infinite at t = 1."""
    options = {"stepsize_controller": diffrax.PIDController(rtol=1e-10, atol=1e-12)}
    with pytest.raises(lagrax.SolveError) as caught:
        lagrax.solve(lambda t, x, args: x**2, 0.0, 3.0, 1.0, max_steps=900, **options)
    message = str(caught.value)
    assert message.startswith("The solution probably becomes infinite")
    assert message.index("More steps do not help") < message.index("raise `max_steps`")
    assert "failed at t = 1" in message or "failed at t = 0.999" in message
    message = lagrax.RESULTS[lagrax.RESULTS.max_steps_reached]
    assert message.index("without bound") < message.index("raise `max_steps`")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("max_steps_reached", "raise `max_steps`"),
        ("dt_min_reached", "lower `dtmin`"),
        ("nonlinear_max_steps_reached", "`root_finder` more iterations"),
        ("nonlinear_divergence", "another `root_finder`"),
        ("step_underflow", "loosen the tolerances"),
    ],
)
def test_a_failed_step_may_be_a_blow_up_before_it_needs_a_remedy(code, remedy):
    message = lagrax.RESULTS[getattr(lagrax.RESULTS, code)]
    assert "`sol.failed_at` says when" in message
    assert message.index("infinite") < message.index(remedy)


def test_an_interval_with_a_lag_may_take_all_steps():
    """The first of twenty intervals needs most of the steps."""

    def field(t, y, args, *, history):
        return -history[0] + jnp.where(t < 1, jnp.cos(1000 * t), 0)

    few, more = [
        lagrax.solve(field, 0.0, 20.0, 0.5, delays=[lagrax.Lag(1.0)], max_steps=n, throw=False)
        for n in (200, 1000)
    ]
    assert few.result == lagrax.RESULTS.max_steps_reached
    assert few.stats["num_steps"] == 200
    assert few.failed_at < 1
    assert more.result == lagrax.RESULTS.successful
    assert more.stats["num_accepted_steps"] > 256


def test_printing_names_the_result():
    assert "result=lagrax.RESULTS<successful>" in repr(solve())
    assert "'num_intervals': 2" in repr(solve())
    assert "t1=2.0," in repr(solve())
    assert "RESULTS<The maximum number" in repr(solve(max_steps=2, throw=False))
    ends = jax.vmap(lambda y0: solve(y0=y0, throw=False))(jnp.array([1.0, NAN, 2.0]))
    assert "result=lagrax.RESULTS<2 of 3 successful>" in repr(ends)
    shown = []
    jax.jit(lambda y0: shown.append(repr(solve(y0=y0))))(1.0)
    assert "RESULTS<traced>" in shown[0]


def test_max_steps_reached():
    with pytest.raises(lagrax.SolveError, match=r"maximum number.*t = "):
        solve(max_steps=2)
    sol = solve(max_steps=2, throw=False)
    assert sol.result == lagrax.RESULTS.max_steps_reached
    assert 0 < sol.failed_at < 2
    assert sol.stats["num_steps"] == 2


@pytest.mark.parametrize("options", [{}, {"steps": 50}], ids=["adaptive", "fixed"])
def test_a_state_that_blows_up(options):
    """x' = x^2 x(floor t) from 1 is infinite at t = 1; fixed steps notice at the next knot."""
    explode = lambda t, x, args, *, history: x**2 * history[0]
    sol = solve(explode, y0=1.0, t1=3.0, delays=[Hold(0.5)], throw=False, **options)
    assert sol.result != lagrax.RESULTS.successful
    assert 0.45 < sol.failed_at <= 1.5
    when = "at or before" if "steps" in options else "at"
    with pytest.raises(lagrax.SolveError, match=f"It failed {when} t = ") as caught:
        solve(explode, y0=1.0, t1=3.0, delays=[Hold(0.5)], **options)
    assert "sol." not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"steps": 4}], ids=["adaptive", "fixed"])
def test_a_field_that_becomes_nan(options):
    sol = solve(
        lambda t, y, args, *, history: jnp.where(t < 1.2, -y, jnp.nan) * history[0],
        throw=False,
        **options,
    )
    assert sol.result == lagrax.RESULTS.state_not_finite
    assert 1.0 <= sol.failed_at <= 2.0
    if not options:
        np.testing.assert_allclose(sol.failed_at, 1.2, atol=0.1)


def test_a_nan_at_the_start():
    sol = solve(y0=NAN, throw=False)
    assert sol.result == lagrax.RESULTS.state_not_finite
    assert sol.failed_at == 0.0


def test_steps_that_cannot_be_resolved():
    control = diffrax.PIDController(rtol=1e-15, atol=1e-30)
    wild = lambda t, y, args, *, history: jnp.sin(1e4 * t) * jnp.exp(3 * y) * history[0]
    sol = solve(wild, stepsize_controller=control, throw=False, max_steps=100_000)
    assert sol.result == lagrax.RESULTS.step_underflow
    assert np.isfinite(sol.failed_at)


def test_too_few_intervals_inside_jit():
    def final(tau, throw):
        return solve(delays=[Hold(tau)], intervals=2, throw=throw)

    result = jax.jit(lambda tau: final(tau, False).result)
    assert result(1.0) == lagrax.RESULTS.successful
    assert result(0.5) == lagrax.RESULTS.intervals_too_few
    assert result(-1.0) == lagrax.RESULTS.intervals_too_few
    with pytest.raises(Exception, match="Raise `intervals`"):
        jax.block_until_ready(jax.jit(lambda tau: final(tau, True).ys)(0.5))


def test_traced_instants_that_do_not_increase():
    result = jax.jit(lambda ts: solve(delays=[Hold(times=ts)], throw=False).result)
    assert result(jnp.array([0.5, 1.0])) == lagrax.RESULTS.successful
    assert result(jnp.array([1.0, 0.5])) == lagrax.RESULTS.intervals_too_few


def test_after_a_failure_there_are_no_states():
    sol = solve(max_steps=2, throw=False, saveat=at(0.0, 1.9))
    assert np.isfinite(sol.ys[0])
    assert np.isnan(sol.ys[1])
    assert np.isnan(sol.knots.ys[1:]).all()


def test_after_a_failure_there_is_no_dense_output():
    explode = lambda t, y, args: y**2
    dense = {"saveat": diffrax.SaveAt(dense=True), "throw": False}
    sol = lagrax.solve(explode, 0.0, 3.0, 1.0, **dense)
    found = sol.evaluate(jnp.array([0.5, 1.5, 3.0]))
    assert found[0] == pytest.approx(2.0, rel=1e-3)
    assert np.isnan(found[1:]).all()
    few = jax.jit(lambda tau: solve(delays=[Hold(tau)], intervals=2, **dense).evaluate(0.2))
    assert np.isfinite(few(1.0))
    assert np.isnan(few(0.5))


def test_failure_inside_jit_raises():
    dense = diffrax.SaveAt(dense=True)
    for final in (
        lambda y0: solve(y0=y0, max_steps=2).ys,
        lambda y0: solve(y0=y0, max_steps=2, saveat=dense).evaluate(0.1),
    ):
        with pytest.raises(Exception, match="maximum number of solver steps"):
            jax.block_until_ready(jax.jit(final)(1.0))


def test_more_intervals_than_steps():
    with pytest.raises(lagrax.SolveError, match=r"make 500 intervals.*give max_steps=4000"):
        solve(t1=500.0, max_steps=300)


def test_an_interval_may_take_1024_steps():
    """One of fifty intervals may take four times its share of the steps, or 1024."""
    wild = lambda t, y, args, *, history: -history[0] + jnp.where(t < 1, jnp.cos(4000 * t), 0)
    few, more = [solve(wild, t1=50.0, max_steps=n, throw=False) for n in (10_000, 100_000)]
    assert few.result == lagrax.RESULTS.max_steps_reached
    assert few.stats["num_accepted_steps"] == 1024
    with pytest.raises(lagrax.SolveError, match=r"four times its share of max_steps=10000"):
        solve(wild, t1=50.0, max_steps=10_000)
    assert more.result == lagrax.RESULTS.successful
    assert more.stats["num_accepted_steps"] > 1024


def test_without_matplotlib_an_example_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    script = "examples/population.py"
    done = subprocess.run(
        [sys.executable, "-c", code, script], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "lagrax[plot]" in done.stderr + done.stdout


def test_a_failure_is_not_hidden_by_a_time_outside():
    run = jax.jit(lambda ts: solve(saveat=diffrax.SaveAt(ts=ts), max_steps=2, throw=False).result)
    assert run(jnp.array([0.1, 3.0])) == lagrax.RESULTS.max_steps_reached


def test_too_few_intervals_from_between_two_instants():
    def solve_in_intervals(tau, intervals):
        sol = solve(t0=0.5, t1=2.5, delays=[Hold(tau)], intervals=intervals, throw=False)
        return sol.result, sol.ys

    few, ys = jax.jit(lambda tau: solve_in_intervals(tau, 2))(1.0)
    assert few == lagrax.RESULTS.intervals_too_few
    assert np.isnan(ys).all()
    assert jax.jit(lambda tau: solve_in_intervals(tau, 3)[0])(1.0) == lagrax.RESULTS.successful


def test_a_traced_end_before_the_start():
    run = jax.jit(lambda t1: solve(t0=1.0, t1=t1, intervals=3, throw=False).result)
    assert run(2.0) == lagrax.RESULTS.successful
    assert run(0.5) == lagrax.RESULTS.intervals_too_few


def test_rejected_steps_count():
    """All steps across t = 0.5 are rejected until `max_steps` is reached."""
    wild = lambda t, y, args: jnp.where(t > 0.5, 1e6 * jnp.sin(1e6 * t), 0.0) - y
    sol = lagrax.solve(wild, 0.0, 1.0, 0.5, dt0=0.4, max_steps=20, throw=False)
    assert sol.result == lagrax.RESULTS.max_steps_reached
    assert sol.stats["num_rejected_steps"] > 0
    assert sol.stats["num_steps"] == 20


def grow_until(t, y, p, *, history):
    return jnp.where(t < 1.5, p[0] * y * history[0], p[1] * y)


# What a solve with throw=False does not reach, as a function of two parameters: p[1] is used only
# after the failure.
def failing(p, gradient, saveat, *, t1=2.0, y0=1.0, tau=0.5, delays=None, **options):
    return lagrax.solve(
        grow_until, 0.0, t1, y0, p, delays=[Hold(tau)] if delays is None else delays,
        gradient=gradient, saveat=saveat, throw=False, **options,
    )  # fmt: skip


FAILURES = {
    "max_steps": (1.0, {"max_steps": 4}),
    "step underflow": (3.0, {"y0": 2.0}),
    "not finite": (30.0, {"y0": 10.0, "steps": 3}),
    "NaN at the start": (1.0, {"y0": NAN, "steps": 3}),
}
GRADIENTS = {"direct": Direct(), "checkpointed": Checkpointed(), "adjoint": Adjoint()}
SAVES = {
    "t1": diffrax.SaveAt(t1=True),
    "ts": at(0.1, 1.9),
    "dense": diffrax.SaveAt(dense=True),
    "steps": diffrax.SaveAt(steps=True, t1=True),
}


@pytest.mark.parametrize(
    ("failure", "gradient"),
    [
        # A step that is too short differs from too many steps in its code alone.
        pytest.param(f, g, marks=[pytest.mark.slow] * (f == "step underflow" and g != "direct"))
        for f in FAILURES
        for g in GRADIENTS
    ],
)
def test_the_gradient_of_a_failure_is_nan(failure, gradient):
    p, options = FAILURES[failure]

    def loss(p):
        sol = failing(p, GRADIENTS[gradient], SAVES["ts"], **options)
        # Their sum is not used: NaN must not depend on whether cotangents cancel.
        return sol.ys[1] - sol.knots.ys[-1], sol.result

    (value, result), slopes = jax.value_and_grad(loss, has_aux=True)(jnp.array([p, 1.0]))
    assert result != lagrax.RESULTS.successful
    assert np.isnan(value)
    assert np.isnan(slopes).all()


@pytest.mark.parametrize("saves", ["t1", "dense", "steps"])
def test_the_gradient_of_a_failure_is_nan_however_it_is_saved(saves):
    p, options = FAILURES["not finite" if saves == "steps" else "max_steps"]

    def loss(p):
        sol = failing(p, Checkpointed(), SAVES[saves], **options)
        return sol.evaluate(1.9) if saves == "dense" else sol.ys[-1]

    value, slopes = jax.value_and_grad(loss)(jnp.array([p, 1.0]))
    assert np.isnan(value)
    assert np.isnan(slopes).all()


def test_forward_mode_of_a_failure_is_nan():
    loss = lambda p: failing(p, Direct(), SAVES["t1"], max_steps=4).ys[-1]
    for tangent in (jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])):
        assert np.isnan(jax.jvp(loss, (jnp.array([1.0, 1.0]),), (tangent,))[1])


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_of_traced_times_are_nan_where_these_do_not_fit(gradient):
    """Too few intervals, t1 before t0, a negative period, a time outside."""

    def loss(p, steps):
        tau, t1, ts = p
        saveat = diffrax.SaveAt(ts=ts[None])
        options = {"steps": steps, "intervals": 2}
        args = jnp.array([1.0, 1.0])
        return failing(args, GRADIENTS[gradient], saveat, t1=t1, tau=tau, **options).ys[0]

    slope = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    assert np.isfinite(slope((0.8, 1.0, 0.7), 3)[1]).all()
    for p in ((0.3, 1.0, 0.7), (0.8, -0.5, 0.7), (-0.8, 1.0, 0.7), (0.8, 1.0, 1.7)):
        value, slopes = slope(p, 3)
        assert np.isnan(value)
        assert np.isnan(slopes).all(), p


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_failure_in_a_batch_leaves_the_others_alone(gradient):
    y0s, p = jnp.array([0.5, 3.0, 0.7]), jnp.array([1.0, -1.0])

    def one(p, y0):
        sol = failing(p, GRADIENTS[gradient], SAVES["ts"], y0=y0)
        return jnp.sum(sol.ys), sol.result == lagrax.RESULTS.successful

    of_one = jax.grad(one, has_aux=True)
    run = jax.jit(jax.vmap(of_one, (None, 0)))
    slopes, good = run(p, y0s)
    np.testing.assert_array_equal(good, [True, False, True])
    assert np.isnan(slopes[1]).all()
    others, all_good = run(p, y0s.at[1].set(0.6))
    assert all_good.all()
    np.testing.assert_allclose(slopes[::2], others[::2], rtol=1e-6)

    def masked_loss(p):
        losses, good = jax.vmap(one, (None, 0))(p, y0s)
        return jnp.sum(jnp.where(good, losses, 0))

    # A loss that leaves the failure out has the gradient of the others.
    np.testing.assert_allclose(jax.jit(jax.grad(masked_loss))(p), slopes[0] + slopes[2], rtol=1e-5)


def explode(t, y, a, *, history):
    return a * y**2 * history[0]


@pytest.mark.parametrize("options", [{}, {"max_steps": 3}, {"steps": 20}])
@pytest.mark.parametrize("transform", [jax.grad, jax.hessian])
def test_derivatives_of_a_failure_raise_its_message(transform, options):
    loss = lambda a: lagrax.solve(
        explode, 0.0, 3.0, 1.0, a, delays=[Hold(0.5)], gradient=Checkpointed(), **options
    ).ys[-1]
    with pytest.raises(lagrax.SolveError, match=r"It failed at (or before )?t = "):
        transform(loss)(1.0)


@pytest.mark.parametrize(
    ("delay", "gradient"),
    [(Hold(0.5), Checkpointed()), (lagrax.Lag(0.5), Checkpointed()), (Hold(0.5), Adjoint())],
)
def test_reverse_mode_twice_names_the_gradient_that_has_it(delay, gradient):
    f = lambda t, y, a, *, history: -a * history[0] * y
    loss = lambda a, gradient: lagrax.solve(
        f, 0.0, 1.0, 1.0, a, delays=[delay], gradient=gradient
    ).ys[-1]
    with pytest.raises(RuntimeError, match=r"gradient=lagrax.Direct\(\)"):
        jax.grad(jax.grad(loss))(1.0, gradient)


def test_the_derivative_of_a_failure_by_time_raises_its_message():
    end = lambda t1: solve(t1=t1, intervals=5, max_steps=2).ys[-1]
    with pytest.raises(lagrax.SolveError, match="maximum number of solver steps"):
        jax.grad(end)(2.0)


@pytest.mark.parametrize(
    "gradient", [pytest.param("direct", marks=pytest.mark.slow), "checkpointed"]
)
def test_an_implicit_solver_past_a_blow_up(gradient, x64):
    """x' = a x^2 from x0 is infinite at 1 / (a x0). Derivatives of implicit steps solve linear
    equations, which must not end in an error of their own."""

    def end(a, y0):
        sol = lagrax.solve(
            lambda t, x, a, *, history: a * x**2 + 0 * history[0],
            0.0, 3.0, y0, a, delays=[Hold(0.5)], solver=diffrax.Kvaerno3(), steps=20,
            gradient=GRADIENTS[gradient], saveat=at(0.25, 2.9), throw=False,
        )  # fmt: skip
        return sol.ys[-1], (sol.ys[0], sol.result, sol.failed_at)

    run = jax.jit(jax.vmap(jax.value_and_grad(end, has_aux=True), (None, 0)))
    (ends, (early, results, failed_at)), slopes = run(1.0, jnp.array([0.1, 1.0]))
    np.testing.assert_allclose([ends[0], *early], [0.1 / 0.71, 0.1 / 0.975, 1 / 0.75], rtol=1e-5)
    np.testing.assert_allclose(slopes[0], 2.9 * 0.1**2 / 0.71**2, rtol=1e-6)
    assert (results == lagrax.RESULTS.successful).tolist() == [True, False]
    assert 0.8 < failed_at[1] < 1.1
    assert np.isnan(ends[1])
    assert np.isnan(slopes[1])
