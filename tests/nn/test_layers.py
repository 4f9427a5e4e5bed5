"""Layers against `lagrax.solve` with plain fields, and against closed forms."""

import copy

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.networks import (
    KEY,
    MIDPOINT,
    check_close,
    evaluate_plainly,
    normal,
    value_and_gradient,
)

from lagrax import Adjoint, Checkpointed, Direct, Hold, Input, Jump, Lag, holds, nn, solve
from lagrax.nn import (
    ANODE,
    MLP,
    NDDE,
    NODE,
    NPCDDE,
    UNPCDDE,
    Augment,
    Classifier,
    Conv,
    Flow,
    Head,
    parameter_count,
)


def population(t, x, a, *, history):
    return a * x * (1 - history[0])


def exact_population(ts, x, a, start):
    """On [k, k+1] the solution is x_k exp(a(1 - x_k)(t - k))."""
    out = []
    for k in range(start, int(ts[-1]) + 1):
        inside = ts[(ts >= k) & (ts < k + 1)]
        out += [x * np.exp(a * (1 - x) * (t - k)) for t in inside]
        x = x * np.exp(a * (1 - x))
    return np.stack(out)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("t0", "t1"), [(0, 3), (3, 13)])
def test_time_series_on_any_span_are_exact(t0, t1):
    """The population experiment: tau = 1, training on [0, 3], forecasts on [3, 13]."""
    ts = np.linspace(t0, t1, 10 * (t1 - t0) + 1)
    x = np.array([[0.3], [0.5], [1.4]])
    layer = NPCDDE(population, 1, stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9))
    sol = layer.solve(x, t0=t0, t1=t1, args=2.0, saveat=diffrax.SaveAt(ts=ts))
    assert sol.ys.shape == (len(ts), 3, 1)
    np.testing.assert_allclose(sol.ys, exact_population(ts, x, 2.0, t0), rtol=1e-6)
    assert sol.stats["num_intervals"] == t1 - t0


LAYERS = {
    "NODE": (lambda make, **o: NODE(make(0), **o), 1),
    "ANODE": (lambda make, **o: ANODE(make(0), 1, **o), 1),
    "NDDE": (lambda make, **o: NDDE(make(1), 0.5, **o), 2),
    "NPCDDE": (lambda make, **o: NPCDDE(make(3), 3, **o), 3),
    "UNPCDDE": (lambda make, **o: UNPCDDE([make(k + 1) for k in range(3)], **o), 3),
    "simple": (lambda make, **o: NPCDDE(make(1, uses_state=False), 3, lags=1, **o), 3),
    "special": (lambda make, **o: NPCDDE(make(2, uses_state=False), 2, **o), 2),
}


def make_layer(make, channels=2, **options):
    keys = iter(jax.random.split(KEY, 9))
    field = lambda history, **o: MLP(channels, (8,), history=history, key=next(keys), **o)
    return make(field, **options)


def make_plain(field):
    """The field as a plain function that concatenates its whole history at each evaluation."""

    def f(t, y, args, *, history):
        used = history[: field.design.history]
        return evaluate_plainly(field, *([y] if field.design.uses_state else []), *used)

    return f


DELAYS = {
    "NODE": [],
    "ANODE": [],
    "NDDE": [Lag(0.5)],
    "NPCDDE": holds(1 / 3, 3),
    "UNPCDDE": holds(1 / 3, 3),
    "simple": [Hold(1 / 3)],
    "special": [Hold(0.5), Hold(0.5, lag=1)],
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_equals_solve_with_its_delays(kind):
    """Compares values and gradients."""
    make, intervals = LAYERS[kind]
    channels = 3 if kind == "ANODE" else 2
    layer = make_layer(make, channels, **MIDPOINT)
    x = normal(0, 4, 2)
    y0 = jnp.concatenate([x, jnp.zeros((4, 1))], axis=-1) if kind == "ANODE" else x

    def plain(field, y0):
        field = [make_plain(f) for f in field] if kind == "UNPCDDE" else make_plain(field)
        sol = solve(field, 0.0, 1.0, y0, delays=DELAYS[kind], **MIDPOINT)
        return sol.ys[-1]

    stats = eqx.filter_eval_shape(layer.solve, x).stats
    assert stats["num_intervals"] == intervals
    got, out = value_and_gradient(lambda layer: layer(x), layer)
    expected, expected_out = value_and_gradient(lambda field: plain(field, y0), layer.flow.field)
    check_close(out, expected_out)
    check_close(jax.tree.leaves(got), jax.tree.leaves(expected), 2e-5)
    assert all(jnp.any(g != 0) for g in jax.tree.leaves(got))


@pytest.mark.parametrize(
    ("make", "entries"),
    [
        (lambda f: NODE(f), 0),
        (lambda f: NDDE(f), 1),
        (lambda f: NPCDDE(f, 3), 3),
        (lambda f: NPCDDE(f, 3, lags=1), 1),
        (lambda f: UNPCDDE([f, f]), 2),
        (lambda f: UNPCDDE([f, f], lags=1), 1),
    ],
)
def test_field_gets_the_number_of_past_states_of_its_layer(make, entries):
    seen = set()

    def field(t, y, args, *, history):
        seen.add(len(history))
        return -y

    eqx.filter_eval_shape(make(field), jnp.ones(1))
    assert seen == {entries}


def test_unpcdde_equals_its_equations_written_out():
    """Interval k has its own field of z(t), z_k, ..., z_0 (eq. 14); midpoint steps."""
    n = 3
    fields = [Conv(2, 4, history=k + 1, key=jax.random.key(k)) for k in range(n)]
    x = normal(0, 2, 4, 4, 2)

    @jax.jit
    def written_out(fields, x):
        knots = [x]
        for field in fields:
            past, h = knots[::-1], 1 / n
            half = knots[-1] + h / 2 * evaluate_plainly(field, knots[-1], *past)
            knots.append(knots[-1] + h * evaluate_plainly(field, half, *past))
        return jnp.stack(knots)

    sol = UNPCDDE(fields, **MIDPOINT).solve(x)
    check_close(sol.knots.ys, written_out(fields, x))
    check_close(sol.knots.ts, jnp.arange(n + 1) / n, 1e-6)


@pytest.mark.parametrize("kind", ["ANODE", "NDDE", "UNPCDDE", "special"])
def test_batch_equals_a_loop_over_its_members(kind):
    layer = make_layer(LAYERS[kind][0], 3 if kind == "ANODE" else 2, **MIDPOINT)
    x = normal(0, 2, 2, 2)
    together = layer(x)
    check_close(together, jax.vmap(jax.vmap(layer))(x), 1e-6)
    check_close(together[1, 0], layer(x[1, 0]), 1e-6)


@pytest.mark.parametrize("kind", ["ANODE", "NPCDDE"])
def test_jit_takes_layers_without_a_filter(kind):
    """All leaves are arrays, and equal layers share one compiled program."""
    make, channels = LAYERS[kind][0], 3 if kind == "ANODE" else 2
    options = lambda: {
        "solver": diffrax.Heun(),
        "stepsize_controller": diffrax.PIDController(rtol=1e-3, atol=1e-3),
    }
    layers = [make_layer(make, channels, **options()) for _ in range(2)]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(layers))
    traced = []

    @jax.jit
    def run(layer, x):
        traced.append(1)
        return layer(x)

    x = normal(0, 2)
    for layer in layers:
        check_close(run(layer, x), layer(x))
    assert len(traced) == 1


def test_solve_options_are_passed_on():
    field = lambda t, y, args, *, history: jnp.sin(y)
    x = jnp.ones(1)
    stats = NODE(field, steps=7, solver=diffrax.Midpoint()).solve(x).stats
    assert (stats["num_steps"], stats["num_evaluations"]) == (7, 14)
    loose, tight = [
        NODE(
            field,
            T=2.0,
            solver=diffrax.Heun(),
            stepsize_controller=diffrax.PIDController(rtol=r, atol=r),
            max_steps=170,
        ).solve(x)
        for r in (1e-2, 1e-4)
    ]
    assert loose.stats["num_steps"] < tight.stats["num_steps"]
    assert loose.stats["max_steps"] == 170
    assert loose.t1 == 2
    explode = lambda t, y, args, *, history: y**2 * 1e30
    assert not jnp.isfinite(NODE(explode, steps=3, throw=False)(x)).all()
    with pytest.raises(RuntimeError, match="infinite or NaN"):
        NODE(explode, steps=3)(x)
    with pytest.raises(TypeError, match="step"):
        NODE(field, step=3)


def test_augment_appends_zeros():
    x = normal(0, 2, 3)
    check_close(Augment(2)(x), np.pad(x, [(0, 0), (0, 2)]), 0)
    assert Augment(0)(x) is x
    field = MLP(4, (5,), key=KEY)
    padded = jnp.pad(x, [(0, 0), (0, 1)])
    check_close(ANODE(field, **MIDPOINT)(x), NODE(field, **MIDPOINT)(padded), 0)
    held = MLP(4, (5,), history=2, key=KEY)
    layer = NPCDDE(held, 2, **MIDPOINT)
    plain = layer(padded)
    check_close(NPCDDE(held, 2, augment=1, **MIDPOINT)(x), plain, 0)
    check_close(eqx.nn.Sequential([Augment(1), layer])(x), plain, 0)  # pyright: ignore


def test_past_may_be_a_function():
    """With c e^c = 1, z = e^{ct} solves z' = z(t - 1). An augmented channel stays zero."""
    c = 0.5671432904097838
    field = lambda t, y, args, *, history: history[0]
    layer = NDDE(field, 1.0, augment=1, steps=20)
    y = layer.solve(lambda t: jnp.exp(c * jnp.asarray([t])), t1=1.5).ys[-1]
    check_close(y, jnp.asarray([np.exp(1.5 * c), 0.0]), 1e-5)


def test_flow_solves_from_any_start_to_any_end(x64):
    field = lambda t, y, args, *, history: jnp.sin(t) - y * history[0]
    x, plain = jnp.ones(1), {"delays": [Hold(1.0)], "steps": 4}
    flow = nn.Flow(field, [Hold(1.0)], T=2.0, steps=4)
    np.testing.assert_allclose(flow.solve(x, t0=3.0).ys, solve(field, 3.0, 5.0, x, **plain).ys)
    trained = nn.Flow(field, [Hold(jnp.asarray(1.0))], T=2.0, intervals=2, steps=4)
    further = eqx.filter_jit(lambda flow: flow.solve(x, t1=4.0, intervals=4).ys)(trained)
    np.testing.assert_allclose(further, solve(field, 0.0, 4.0, x, **plain).ys)


def test_flow_mixes_delays():
    field = lambda t, y, args, *, history: history[0] + 2 * history[1]
    flow = Flow(field, [Hold(0.5), Lag(1.0)], steps=2)
    x = jnp.ones(1)
    # z_0 = 1 over [0, 1/2], then z_1 = 1 + 3/2; the lagged state is 1 throughout.
    check_close(flow(x), jnp.asarray([2.5 + (2.5 + 2) / 2]), 1e-5)


def test_head_and_classifier_return_logits():
    head = Head((3, 2), 5, key=KEY)
    assert head(normal(0, 3, 2)).shape == (5,)
    assert head(normal(0, 7, 4, 3, 2)).shape == (7, 4, 5)
    x = normal(0, 7, 3, 2)
    weight, bias = head.affine.weight, head.affine.bias
    check_close(head(x), jnp.stack([row.ravel() @ weight + bias for row in x]))
    field = MLP(2, (4,), key=KEY)
    model = Classifier(NODE(field, steps=1), head)
    check_close(model(x), head(NODE(field, steps=1)(x)), 0)
    assert parameter_count(model) == (2 * 4 + 4 + 4 * 2 + 2) + (6 * 5 + 5)
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected \(3, 2\)"):
        head(normal(0, 2, 3))


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["NDDE", "UNPCDDE"])
def test_direct_and_checkpointed_gradients_agree(kind):
    make, _ = LAYERS[kind]
    x = normal(0, 3, 1)
    got, expected = [
        jax.tree.leaves(
            value_and_gradient(lambda a: a(x), make_layer(make, 1, gradient=g, **MIDPOINT))[0]
        )
        for g in (Direct(), Checkpointed())
    ]
    check_close(got, expected)
    assert all(jnp.any(g != 0) for g in got)


def test_adjoint_gradient_is_close():
    """Theorem 2: optimise, then discretise."""
    make = lambda g: make_layer(LAYERS["NPCDDE"][0], steps=1, solver=diffrax.Heun(), gradient=g)
    x = normal(0, 3, 2)
    got, expected = [
        value_and_gradient(lambda a: a(x), make(g))[0] for g in (Adjoint(), Checkpointed())
    ]
    check_close(jax.tree.leaves(got), jax.tree.leaves(expected), 3e-2)
    with pytest.raises(ValueError, match="does not support a Lag"):
        make_layer(LAYERS["NDDE"][0], gradient=Adjoint())(x)


# --- trained periods and instants -----------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_tau_may_be_trained():
    """z' = z_k over [0, 1] is (1 + tau)(1 + (1 - tau)) for 1/2 <= tau < 1."""
    field = lambda t, y, args, *, history: history[0]
    layer = Flow(field, [Hold(jnp.asarray(0.7))], intervals=2, steps=1)
    x = jnp.asarray([3.0])
    assert parameter_count(layer) == 1
    value_and_grad = eqx.filter_value_and_grad(lambda layer: layer(x)[0])
    value, grad = eqx.filter_jit(value_and_grad)(layer)
    np.testing.assert_allclose(value, 3 * 1.7 * 1.3, rtol=1e-12)
    np.testing.assert_allclose(jax.tree.leaves(grad)[0], 3 * (1.3 - 1.7), rtol=1e-9)


def test_trained_final_time_is_one_parameter():
    """T remains n tau."""
    field = nn.MLP(1, (4,), history=2, key=jax.random.key(0))
    for layer in (
        nn.NPCDDE(field, 2, T=jnp.array(3.0), intervals=4, steps=2),
        nn.UNPCDDE([field, field], T=jnp.array(3.0), lags=2, steps=2),
    ):
        moved = jax.tree.map(lambda x: x + 0.1 if x.ndim == 0 else x, layer)
        knots = moved.solve(jnp.ones(1)).knots.ts
        np.testing.assert_allclose(np.unique(knots), [0.0, 1.6, 3.2], rtol=1e-6)


@pytest.mark.parametrize("delay", [Hold(0.5), Hold(times=[0.0, 0.3])], ids=["tau", "times"])
def test_a_flow_can_be_copied(delay):
    mlp = nn.MLP(1, (4,), history=1, key=jax.random.key(0))
    flow, x = nn.Flow(mlp, [delay], steps=2), jnp.ones((2, 1))
    for other in (copy.copy(flow), copy.deepcopy(flow)):
        np.testing.assert_array_equal(other(x), flow(x))


def test_holds_of_one_array_share_one_period():
    mlp = nn.MLP(1, (4,), history=2, key=jax.random.key(0))
    tau = jnp.array(0.4)
    flow = nn.Flow(mlp, holds(tau, 2), steps=4, intervals=4)
    assert nn.parameter_count(flow) == nn.parameter_count(mlp) + 1
    x = jnp.ones((3, 1))
    slopes = jax.jit(jax.grad(lambda flow: flow(x).sum()))(flow)
    (found,) = [leaf for leaf in jax.tree.leaves(slopes) if leaf.shape == ()]
    total = lambda tau: nn.Flow(mlp, holds(tau, 2), steps=4, intervals=4)(x).sum()
    assert found == pytest.approx(float(jax.jit(jax.grad(total))(tau)), rel=1e-4)


@pytest.mark.parametrize(("array", "trained"), [(list, 0), (np.array, 0), (jnp.array, 3)])
def test_instants_are_trained_if_they_are_a_jax_array(array, trained):
    mlp = nn.MLP(1, (4,), history=1, key=jax.random.key(0))
    make_flow = lambda times: nn.Flow(mlp, [Hold(times=array(times))], steps=4)
    flow = make_flow([0.0, 0.3, 0.7])
    assert nn.parameter_count(flow) == nn.parameter_count(mlp) + trained
    # Other instants are constants of the program. Equal constants share it.
    traced = []
    run = jax.jit(lambda flow, x: traced.append(0) or flow(x))
    x = jnp.ones((2, 1))
    first, again = run(flow, x), run(make_flow([0.0, 0.3, 0.7]), x)
    np.testing.assert_array_equal(first, again)
    assert len(traced) == 1
    other = run(make_flow([0.0, 0.2, 0.7]), x)
    assert len(traced) == (1 if trained else 2)
    assert np.max(np.abs(other - first)) > 0


def test_a_flow_trains_its_jumps_and_takes_those_of_a_solve():
    """x' = u - x, with doses of the layer and an input and a dose of one solve."""
    field = lambda t, y, args, *, history: sum(history) - y
    doses = Jump(np.array([0.25, 0.5]), add=jnp.array([[1.0], [2.0]]))
    layer = nn.Flow(field, jumps=[doses], steps=4)
    exact = lambda ends: sum(a * jnp.exp(-(1.0 - t)) for t, a in ends)
    given = [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0)]
    np.testing.assert_allclose(layer(jnp.ones(1)), [exact(given)], rtol=1e-4)
    power = Input([0.0, 0.5], [[0.0], [3.0]])
    more = Jump([0.8], add=[4.0])
    sol = layer.solve(jnp.ones(1), inputs=[power], jumps=[more])
    expected = exact([*given, (0.8, 4.0)]) + 3 * (1 - jnp.exp(-0.5))
    np.testing.assert_allclose(sol.ys[-1], [expected], rtol=1e-4)
    slopes = eqx.filter_grad(lambda layer: layer(jnp.ones(1))[0])(layer)
    (of_amounts,) = jax.tree.leaves(slopes)
    np.testing.assert_allclose(of_amounts[:, 0], jnp.exp(jnp.array([-0.75, -0.5])), rtol=1e-4)
