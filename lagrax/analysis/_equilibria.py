"""Equilibria of equations with lags, their characteristic roots, and where these cross the axis."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, PyTree

from .._solve.arguments import check_memory, check_whole, is_number, is_traced
from .._solve.delays import RealScalar
from ..systems import System
from ._lagged import (
    LaggedEquation,
    State,
    Vector,
    as_lagged,
    characteristic_matrix,
    get_lags,
    linearise,
    slope_at_rest,
)
from ._newton import find_root, iterate_newton

Equation = LaggedEquation | System
Matrices = Float[Array, "terms size size"]

# The most nodes of the collocation that `characteristic_roots` tries by itself.
MOST_NODES = 256


def find_equilibrium(equation: Equation, start: State = None) -> PyTree[Float[Array, "..."]]:
    """Finds a state at which the equation rests, by Newton's method from `start`.

    ```python
    find_equilibrium(lagrax.systems.MackeyGlass())  # 1
    ```

    The equilibrium may be unstable, and another start may lead to another one. It is differentiable
    in the parameters and composes with `jit` and `vmap`. It is NaN there if the method fails, and
    raises outside.

    **Arguments:**

    - `equation`: A `LaggedEquation`, or a system with lags.
    - `start`: A state near the equilibrium. By default `y0` of the equation.
    """
    f = as_lagged(equation)
    y, converged = _find_equilibrium(f, f.vector(start))
    if not is_traced(converged) and not converged:
        raise ValueError(
            f"find_equilibrium found none from the start {np.asarray(f.vector(start))}. Give a "
            "`start` closer to an equilibrium, such as the mean of a solution."
        )
    return f.state(y)


@eqx.filter_jit
def _find_equilibrium(f: LaggedEquation, start: Vector) -> tuple[Vector, Bool[Array, ""]]:
    return equilibrium_of(f, start)


def equilibrium_of(f: LaggedEquation, start: Vector) -> tuple[Vector, Bool[Array, ""]]:
    slope = lambda y: slope_at_rest(f, y)
    near, reached = iterate_newton(slope, start)
    # The slope may be flat at the start, as half-way between two equilibria.
    return find_root(slope, jnp.where(reached, near, _settle(slope, start)))


def _settle(slope: Callable, start: Vector) -> Vector:
    """Follows the equation without its lags by growing implicit steps."""
    first = 0.01 * (1 + jnp.max(jnp.abs(start))) / (jnp.max(jnp.abs(slope(start))) + 1e-6)

    def advance(i, y):
        step = jnp.linalg.solve(jnp.eye(y.size) / (first * 1.3**i) - jax.jacfwd(slope)(y), slope(y))
        return y + step

    return jax.lax.fori_loop(0, 60, advance, start)


@eqx.filter_jit
def equilibria_from(
    f: LaggedEquation, starts: Float[Array, "starts size"]
) -> Float[Array, "starts size"]:
    """The equilibria found from several starts, NaN where there is none."""
    return jax.vmap(lambda start: equilibrium_of(f, start)[0])(starts)


# --- characteristic roots -------------------------------------------------------------------------


def characteristic_roots(
    equation: Equation,
    state: State = None,
    *,
    count: int = 6,
    nodes: int | None = None,
) -> Complex[Array, " roots"]:
    """The rightmost roots λ of the characteristic equation at an equilibrium.

    Small deviations are sums of exp(λt), so the equilibrium is stable if all roots have a negative
    real part. An equation with lags has infinitely many roots, few of them to the right. Where the
    lagged states drop out there are few roots at all, and −∞ stands for the others.

    ```python
    characteristic_roots(lagrax.systems.Hutchinson(a=1.8))[0]  # 0.097 + 1.63i: it oscillates
    ```

    The roots are those of the generator, collocated at Chebyshev nodes, corrected by Newton's
    method on the characteristic equation to rounding. Simple roots are differentiable in the
    parameters.

    **Arguments:**

    - `equation`: A `LaggedEquation`, or a system with lags.
    - `state`: An equilibrium. By default the one that `find_equilibrium` returns.
    - `count`: The number of roots, the rightmost first. An ordinary equation has one for each
      component.
    - `nodes`: The number of nodes in the longest lag. By default they are doubled until Newton's
      method confirms all roots. Give about twice the largest lag times the largest frequency inside
      `jit`, where the default is 32.

    D. Breda, S. Maset, R. Vermiglio, *Pseudospectral differencing methods for characteristic roots
    of delay differential equations*, SIAM J. Sci. Comput. 27 (2005).
    """
    f = as_lagged(equation)
    check_whole("characteristic_roots", "count", count, 1, 1000)
    if nodes is not None:
        check_whole("characteristic_roots", "nodes", nodes, 2)
    y = f.vector(find_equilibrium(f) if state is None else state)
    least = nodes or max(32 if f.size <= 8 else 16, -(-count // f.size))
    while True:
        check_memory("characteristic_roots", f"nodes={least}", (f.size * (least + 1)) ** 2)
        roots, confirmed = _roots_at(f, y, count, least)
        if is_traced(confirmed) or nodes is not None or np.all(confirmed):
            return roots
        if least >= MOST_NODES:
            raise ValueError(
                f"characteristic_roots could not confirm {count} roots with {least} nodes. Ask for "
                "fewer, or give more `nodes`, since roots of high frequency need many."
            )
        least *= 2


@eqx.filter_jit
def _roots_at(f: LaggedEquation, y: Vector, count: int, nodes: int):
    return roots_of(linearise(f, y), get_lags(f), count, nodes)


def roots_of(
    matrices: Matrices, lags: Float[Array, " terms"], count: int, nodes: int
) -> tuple[Complex[Array, " roots"], Bool[Array, " roots"]]:
    """The rightmost roots, and which of them Newton's method confirms."""
    fixed = jax.lax.stop_gradient((matrices, lags))
    if len(lags) == 1:
        about = _sort_rightmost(jnp.linalg.eigvals(fixed[0][0]))[:count]
    else:
        about = _drop_impossible(*fixed, jnp.linalg.eigvals(_generator(*fixed, nodes)))[:count]
    found, converged = jax.vmap(lambda root: _correct_root(matrices, lags, root))(about)
    if len(lags) == 1:
        return _sort_rightmost(jnp.where(converged, found, about)), jnp.ones_like(converged)
    # A large correction means that the collocation is too coarse.
    confirmed = converged & (jnp.abs(found - about) <= 1e-2 * (1 + jnp.abs(about)))
    absent = jnp.isneginf(about.real)
    found = jnp.where(absent, -jnp.inf, found)
    # A finer collocation may show roots where a coarse one has none.
    return _sort_rightmost(found), confirmed | (absent & (nodes >= 64))


def _drop_impossible(
    matrices: Matrices, lags: Float[Array, " terms"], roots: Complex[Array, " n"]
) -> Complex[Array, " n"]:
    """The eigenvalues of the collocated generator that may be roots, the rightmost first, and then
    −∞. A root λ = Σ_j A_j exp(−λτ_j) on some vector is no larger than Σ_j |A_j| exp(−Re λ τ_j)."""
    norms = jnp.linalg.norm(matrices, axis=(1, 2))
    most = jnp.exp(-roots.real[:, None] * lags) @ norms
    return _sort_rightmost(jnp.where(jnp.abs(roots) <= 1.1 * most + 1e-6, roots, -jnp.inf))


def _sort_rightmost(roots: Complex[Array, " n"]) -> Complex[Array, " n"]:
    """Roots by decreasing real part. Of a pair the upper one is first, whatever the rounding."""
    size = jnp.max(jnp.where(jnp.isfinite(roots), jnp.abs(roots), 0.0))
    digits = 1e2 * jnp.finfo(roots.real.dtype).eps * (1 + size)
    return roots[jnp.lexsort((-roots.imag, -jnp.round(roots.real / digits)))]


def _generator(
    matrices: Matrices, lags: Float[Array, " terms"], nodes: int
) -> Float[Array, "unknowns unknowns"]:
    """The derivative of the state's history, with the equation in place of its value at 0."""
    longest = jnp.max(lags)
    x = np.cos(np.pi * np.arange(nodes + 1) / nodes)
    weights = (-1.0) ** np.arange(nodes + 1)
    weights[[0, -1]] /= 2
    gaps = x[:, None] - x + np.eye(nodes + 1)
    derivative = weights / weights[:, None] / gaps
    np.fill_diagonal(derivative, 0.0)
    np.fill_diagonal(derivative, -derivative.sum(axis=1))
    derivative = jnp.asarray(derivative, lags.dtype) * 2 / longest
    # Barycentric interpolation at the lags; a node itself has all the weight.
    away = (1 - 2 * lags / longest)[:, None] - x
    hit = jnp.abs(away) < 4 * jnp.finfo(lags.dtype).eps
    terms = jnp.where(hit, 0.0, weights / jnp.where(hit, 1.0, away))
    terms = jnp.where(jnp.any(hit, axis=1)[:, None], hit, terms)
    values = terms / jnp.sum(terms, axis=1)[:, None]
    size = matrices.shape[1]
    top = jnp.einsum("jk,jab->akb", values, matrices).reshape(size, -1)
    below = jnp.kron(derivative[1:], jnp.eye(size, dtype=lags.dtype))
    return jnp.concatenate([top, below])


def _correct_root(
    matrices: Matrices, lags: Float[Array, " terms"], about: Complex[Array, ""]
) -> tuple[Complex[Array, ""], Bool[Array, ""]]:
    """Solves Δ(λ) v = 0 for the root and its vector."""
    fixed = jax.lax.stop_gradient((matrices, lags))
    vector = _null_vector(characteristic_matrix(*fixed, about))

    def conditions(unknown):
        z = _to_complex(unknown)
        missing = characteristic_matrix(matrices, lags, z[0]) @ z[1:]
        return _to_real(jnp.append(missing, jnp.vdot(vector, z[1:]) - 1))

    unknown, converged = find_root(conditions, _to_real(jnp.append(about, vector)), 12)
    return _to_complex(unknown)[0], converged


def _null_vector(matrix: Complex[Array, "n n"]) -> Complex[Array, " n"]:
    return jnp.conj(jnp.linalg.svd(matrix)[2][-1])


def _to_complex(x: Float[Array, " twice"]) -> Complex[Array, " n"]:
    real, imaginary = jnp.split(x, 2)
    return jax.lax.complex(real, imaginary)


def _to_real(z: Complex[Array, " n"]) -> Float[Array, " twice"]:
    return jnp.concatenate([z.real, z.imag])


# --- Hopf points and folds ------------------------------------------------------------------------


class Hopf(NamedTuple):
    """A Hopf point, at which an equilibrium gives rise to cycles. `find_hopf` finds it.

    - `parameter`: The value of the parameter.
    - `state`: The equilibrium there.
    - `frequency`: The imaginary part ω of the critical roots ±iω. Cycles begin with the period
      2π/ω.
    - `vector`: The direction of the cycles in the space of states: they begin as the real part of
      `vector` times exp(iωt). It is a vector of unit length, also for a state of other structure.
    - `speed`: The derivative of the critical root with respect to the parameter.
    - `lyapunov`: The first Lyapunov coefficient. If negative, cycles near the point are stable on
      their centre manifold, and exist where the equilibrium is unstable. Its size depends on the
      length of `vector`.
    """

    parameter: Float[Array, ""]
    state: PyTree[Float[Array, "..."]]
    frequency: Float[Array, ""]
    vector: Complex[Array, " size"]
    speed: Complex[Array, ""]
    lyapunov: Float[Array, ""]

    @property
    def kind(self) -> str:
        """One of "supercritical", with stable cycles where the equilibrium is unstable, and
        "subcritical", with unstable cycles where it is stable."""
        return "supercritical" if self.lyapunov < 0 else "subcritical"


def find_hopf(
    make: Callable[[Any], Equation],
    parameter: RealScalar,
    *,
    start: State = None,
    frequency: RealScalar | None = None,
) -> Hopf:
    """Finds the value of a parameter at which a pair of roots crosses the imaginary axis.

    ```python
    find_hopf(lagrax.systems.Hutchinson, 1.5).parameter  # 1.5708, which is π/2
    ```

    Newton's method solves for the equilibrium, the root with its vector, and the parameter
    together. The answer is differentiable in everything that `make` closes over.

    **Arguments:**

    - `make`: The equation as a function of the parameter.
    - `parameter`: A first guess.
    - `start`: A state near the equilibrium. By default `y0` of the equation.
    - `frequency`: A first guess. By default that of the oscillating root closest to the axis.
    """
    check_guess("find_hopf", parameter=parameter, frequency=frequency)
    p, f, y = start_from(make, parameter, start)
    if frequency is None:
        roots = characteristic_roots(f, f.state(y), count=min(12, _most_roots(f)))
        upper = jnp.where(roots.imag > 1e-4 * (1 + jnp.abs(roots)), jnp.abs(roots.real), jnp.inf)
        frequency = roots.imag[jnp.argmin(upper)]
    hopf, converged = _find_hopf(make, jnp.append(y, p), jnp.asarray(frequency, y.dtype))
    if not is_traced(converged) and not (converged and hopf.frequency > 0):
        raise ValueError(
            f"find_hopf found no Hopf point from {float(p):g} on. Give a `parameter` closer to "
            "one, which characteristic_roots or a branch shows, or a `frequency`."
        )
    state = as_lagged(make(hopf.parameter)).state(hopf.state)
    return hopf._replace(state=state)


def _most_roots(f: LaggedEquation) -> int:
    return f.size if len(f.taus) == 0 else 1000


def check_guess(name: str, **guesses: Any) -> None:
    for what, value in guesses.items():
        if value is not None and not is_traced(value) and not is_number(value):
            raise ValueError(f"{name} got {what}={value!r:.60}; expected one finite real number.")


def start_from(
    make: Callable, parameter: Any, start: State
) -> tuple[Float[Array, ""], LaggedEquation, Vector]:
    """The parameter as an array, the equation there, and its equilibrium."""
    p = jnp.asarray(parameter, float)
    f = as_lagged(make(p))
    return p, f, f.vector(find_equilibrium(f, start))


@eqx.filter_jit
def _find_hopf(make: Callable, point: Vector, frequency: Float[Array, ""]):
    n = point.size - 1
    f = as_lagged(make(point[-1]))
    matrix = characteristic_matrix(linearise(f, point[:-1]), get_lags(f), 1j * frequency)
    vector = jax.lax.stop_gradient(_null_vector(matrix))

    def conditions(unknown):
        y, p, omega, v = unknown[:n], unknown[n], unknown[n + 1], _to_complex(unknown[n + 2 :])
        f = as_lagged(make(p))
        matrix = characteristic_matrix(linearise(f, y), get_lags(f), 1j * omega)
        critical = _to_real(jnp.append(matrix @ v, jnp.vdot(vector, v) - 1))
        return jnp.concatenate([slope_at_rest(f, y), critical])

    start = jnp.concatenate([point, frequency[None], _to_real(vector)])
    unknown, converged = find_root(conditions, start)
    y, p, omega = unknown[:n], unknown[n], unknown[n + 1]
    v = _to_complex(unknown[n + 2 :])
    v = v / jnp.linalg.norm(v)
    f = as_lagged(make(p))
    left = _left_vector(f, y, omega, v)
    speed = _root_speed(make, p, y, omega, left, v)
    return Hopf(p, y, omega, v, speed, _lyapunov(f, y, omega, left, v)), converged


class Fold(NamedTuple):
    """A fold, at which two equilibria meet and vanish. `find_fold` finds it.

    - `parameter`: The value of the parameter.
    - `state`: The equilibrium there.
    """

    parameter: Float[Array, ""]
    state: PyTree[Float[Array, "..."]]


def find_fold(make: Callable[[Any], Equation], parameter: RealScalar, *, start: State) -> Fold:
    """Finds the value of a parameter at which two equilibria meet, and the root 0 appears.

    **Arguments:**

    - `make`: The equation as a function of the parameter.
    - `parameter`: A first guess. There need be no equilibrium at it.
    - `start`: A state near the fold.
    """
    check_guess("find_fold", parameter=parameter)
    p = jnp.asarray(parameter, float)
    f = as_lagged(make(p))
    y = f.vector(start)
    value, point, converged = _find_fold(make, jnp.append(y, p.astype(y.dtype)))
    if not is_traced(converged) and not converged:
        raise ValueError(
            f"find_fold found no fold from {float(p):g} on. Give a `parameter` and a `start` "
            "closer to one, which a branch shows."
        )
    return Fold(value, f.state(point))


@eqx.filter_jit
def _find_fold(make: Callable, point: Vector):
    slope = lambda y, p: slope_at_rest(as_lagged(make(p)), y)
    n = point.size - 1
    vector = jnp.linalg.svd(jax.lax.stop_gradient(jax.jacfwd(slope)(point[:n], point[n])))[2][-1]

    def conditions(unknown):
        y, p, v = unknown[:n], unknown[n], unknown[n + 1 :]
        value, change = jax.jvp(lambda y: slope(y, p), (y,), (v,))
        return jnp.concatenate([value, change, (vector @ v - 1)[None]])

    unknown, converged = find_root(conditions, jnp.append(point, vector))
    return unknown[n], unknown[:n], converged


def _left_vector(
    f: LaggedEquation, y: Vector, omega: Float[Array, ""], v: Complex[Array, " size"]
) -> Complex[Array, " size"]:
    """The row p with pΔ(iω) = 0 and pΔ′(iω)v = 1."""
    matrices, lags = linearise(f, y), get_lags(f)
    row = jnp.conj(jnp.linalg.svd(characteristic_matrix(matrices, lags, 1j * omega))[0][:, -1])
    factors = lags * jnp.exp(-1j * omega * lags)
    return row / (row @ (v + jnp.einsum("j,jab,b->a", factors, matrices, v)))


def _root_speed(make: Callable, p, y, omega, left, v) -> Complex[Array, ""]:
    """The derivative of the root along the equilibria, −p (dΔ/dp) v."""
    state = lambda p: as_lagged(make(p))
    by_y = jax.jacfwd(lambda y: slope_at_rest(state(p), y))(y)
    by_p = jax.jacfwd(lambda p: slope_at_rest(state(p), y))(p)

    def matrix(p, y):
        f = state(p)
        return characteristic_matrix(linearise(f, y), get_lags(f), 1j * omega)

    _, moved = jax.jvp(matrix, (p, y), (jnp.ones_like(p), -jnp.linalg.solve(by_y, by_p)))
    return -(left @ moved @ v)


def _lyapunov(f: LaggedEquation, y: Vector, omega, left, v) -> Float[Array, ""]:
    """The first Lyapunov coefficient of the Hopf normal form.

    Yu. A. Kuznetsov, *Elements of Applied Bifurcation Theory*, section 3.5, with exponentials in
    place of vectors, as in B. Wage, *Normal form computations for delay differential equations in
    DDE-BIFTOOL*, Utrecht University (2014).
    """
    matrices, lags = linearise(f, y), get_lags(f)
    around = lambda ys: f(ys[0], ys[1:])
    rest = jnp.broadcast_to(y, (len(lags), y.size))
    second, third = _second(around, rest), _third(around, rest)
    history = lambda z, rate: jnp.exp(-rate * lags)[:, None] * z
    at = lambda rate: characteristic_matrix(matrices, lags, rate)
    wave = history(v, 1j * omega)
    zero = 0j * omega
    mean = jnp.linalg.solve(at(zero), second(wave, wave.conj()))
    double = jnp.linalg.solve(at(2j * omega), second(wave, wave))
    total = third(wave, wave, wave.conj()) + 2 * second(wave, history(mean, zero))
    total = total + second(wave.conj(), history(double, 2j * omega))
    return (left @ total).real / (2 * omega)


def _second(function: Callable, point: Array) -> Callable:
    by_one = lambda x, u: jax.jvp(function, (x,), (u,))[1]
    return _extend(lambda u, v: jax.jvp(lambda x: by_one(x, u), (point,), (v,))[1])


def _third(function: Callable, point: Array) -> Callable:
    by_one = lambda x, u: jax.jvp(function, (x,), (u,))[1]
    by_two = lambda x, u, v: jax.jvp(lambda x: by_one(x, u), (x,), (v,))[1]
    return _extend(lambda u, v, w: jax.jvp(lambda x: by_two(x, u, v), (point,), (w,))[1])


def _extend(form: Callable) -> Callable:
    """A real multilinear form on complex arguments."""

    def extension(*vectors):
        parts = [((1, z.real), (1j, z.imag)) for z in vectors]
        terms = itertools.product(*parts)
        return sum(np.prod([c for c, _ in term]) * form(*(x for _, x in term)) for term in terms)

    return extension
