"""How should the paper's convolutional field be written so that an H200 runs it fast?

The table shows a whole training step (gradient and Adam) on one NVIDIA H200 with JAX 0.11.2, batch
256 of 32x32x3: the median of 9 batches of 10 steps in one run of this script. TFLOP/s count the
unpadded operations. NODE takes RK4 x 4, the others one midpoint step an interval.

    field                                                 NPCDDE5              NODE
    three convolutions in bf16, scan over intervals       10.4 ms  115 TF/s    16.2 ms  119 TF/s
    the same, intervals unrolled                           7.8 ms  155         12.5 ms  155
    this derivative, bf16, arguments enter as f16          4.9 ms  245          7.3 ms  263
    this derivative, f16, arguments enter as f16           4.8 ms  249          7.3 ms  264
    this derivative, f32 data on tf32 units               10.5 ms  114         16.2 ms  119
    the same, only the 3x3 weight gradient on f16          7.7 ms  155         11.9 ms  162

The table was measured before one change, which transposes the head's weights instead of the state
(planar layout only). With it, on another card of the same type, the NPCDDE5 rows of 245 and 249
TF/s were 250 and 252. Identical programs differed by 1.2 % between cards, so most of this may be
the card. NOTES.md lists all attempts and their reasons, and results/gpu_field_study.json all rows.

`python benchmarks/gpu_field_study.py --out DIR` needs a CUDA GPU with JAX and takes four minutes.
It prints a table and writes JSON lines. `--tiny` checks only the mathematics and runs anywhere.
"""

import argparse
import functools
import json
import pathlib
import platform
import statistics
import time
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
from jax import lax

f32, f16, bf16 = jnp.float32, jnp.float16, jnp.bfloat16
C = 3
NHWC = ("NHWC", "HWIO", "NHWC")
MODELS = {  # filters, arguments of each field, evaluations a step, padded filters
    "NODE": {"k": 92, "ms": [1], "evals": 16, "k_pad": 96},
    "NPCDDE5": {"k": 91, "ms": [6], "evals": 10, "k_pad": 96},
    "UNPCDDE5": {"k": 40, "ms": [2, 3, 4, 5, 6], "evals": 10, "k_pad": 64},
}
DTYPES = {"bf16": bf16, "f16": f16, "f32": f32}


@dataclass(frozen=True)
class Config:
    """One way of writing the field."""

    kind: str = "planar"  # plain: autodiff; nhwc, planar: the hand-written derivative below
    dtype: str = "bf16"  # of activations and cotangents inside the field
    wgrad: str = "same"  # dtype of the 3x3 convolution's weight gradient's operands
    scan: bool = False  # lax.scan over intervals or steps instead of unrolling them
    barrier: bool = True  # keep XLA from splitting layer 1 and from a backward-data kernel
    enter: str = "f32"  # dtype in which the arguments meet the first layer (f32: on tf32 units)
    round_out: bool = False  # round the field's value to `dtype` before it is added to the state
    cast_once: bool = False  # cast weights outside: their gradients are then summed in `dtype`
    round_only: str = ""  # with dtype f32: round "w"eights, "a"ctivations, "g"radients to bf16

    @property
    def dt(self):
        return DTYPES[self.dtype]


# ------------------------------------------------------- the field, as one would first write it


def conv(x, w, precision=None):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=NHWC, precision=precision
    )


def plain_field(p, args, cfg, precision=None):
    dt = cfg.dt
    p = {name: a.astype(dt) for name, a in p.items()}
    h = jnp.concatenate(args, -1).astype(dt)
    h = jax.nn.relu(conv(h, p["w1"][None, None], precision) + p["b1"])
    h = jax.nn.relu(conv(h, p["w2"], precision) + p["b2"])
    return (conv(h, p["w3"][None, None], precision) + p["b3"]).astype(f32)


def pad_plain(p, k_pad):
    d = k_pad - p["b1"].shape[0]
    pads = {
        "w1": ((0, 0), (0, d)),
        "b1": ((0, d),),
        "w2": ((0, 0), (0, 0), (0, d), (0, d)),
        "b2": ((0, d),),
        "w3": ((0, d), (0, 0)),
    }
    return {name: jnp.pad(a, pads[name]) if name in pads else a for name, a in p.items()}


# ------------------------------------------------------- the field with its derivative by hand


def pack(p, k_pad):
    """(w1, w2, w3) with every bias inside: channel k of h1 and of h2 is the constant 1.

    w1's last row meets the constant 1 that follows the arguments. Channel k is free as long as
    k < k_pad, and the biases' gradients fall out of the weights'.
    """
    k = p["b1"].shape[0]
    d = k_pad - k
    assert d >= 1, "one padded channel must be free for the biases"
    w1 = jnp.pad(jnp.concatenate([p["w1"], p["b1"][None]]), ((0, 0), (0, d))).at[-1, k].set(1.0)
    w2 = (
        jnp.pad(p["w2"], ((0, 0), (0, 0), (0, d), (0, d)))
        .at[1, 1, k, :k]
        .set(p["b2"])
        .at[1, 1, k, k]
        .set(1.0)
    )
    w3 = jnp.pad(jnp.concatenate([p["w3"], p["b3"][None]]), ((0, d - 1), (0, 0)))
    return w1, w2, w3


def dot(a, b, ca, cb):
    if jax.default_backend() == "cpu":  # XLA's CPU backend lacks some bf16 x bf16 -> f32 products
        a, b = a.astype(f32), b.astype(f32)
    return lax.dot_general(a, b, ((ca, cb), ((), ())), preferred_element_type=f32)


def conv_weight_gradient(h, g):
    return lax.conv_general_dilated(
        h, g, (1, 1), ((1, 1), (1, 1)), dimension_numbers=("CHWN", "IHWO", "HWNC")
    )


def rounder(cfg, what):
    if cfg.round_only and what in cfg.round_only:
        return lambda a: a.astype(bf16).astype(a.dtype)
    return lambda a: a


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def field(w, args, data, cfg):
    """f([args, data, 1]); `args` and `data` are lists of states, and no gradient goes to `data`.

    A state is (c, n, h, w) if cfg.kind is planar: joining and splitting states is then a copy of
    whole rows.
    """
    return field_fwd(w, args, data, cfg)[0]


def field_fwd(w, args, data, cfg):
    w1, w2, w3 = (rounder(cfg, "w")(a) for a in w)
    dt, ch = cfg.dt, 0 if cfg.kind == "planar" else 3
    one = jnp.ones_like(lax.slice_in_dim(args[0], 0, 1, axis=ch))
    x = jnp.concatenate([a.astype(DTYPES[cfg.enter]) for a in (*args, *data, one)], ch)
    h1 = rounder(cfg, "a")(jax.nn.relu(dot(x, w1.astype(x.dtype), (ch,), (0,))).astype(dt))
    h1 = lax.optimization_barrier(h1) if cfg.barrier else h1
    h2 = rounder(cfg, "a")(jax.nn.relu(conv(h1, w2.astype(dt))))
    w3 = w3.astype(dt)
    out = dot(w3, h2, (0,), (3,)) if cfg.kind == "planar" else dot(h2, w3, (3,), (0,))
    out = out.astype(dt).astype(f32) if cfg.round_out else out
    return out, (w, x, h1, h2, tuple(a.shape[ch] for a in args))


def field_bwd(cfg, saved, g):
    w, x, h1, h2, widths = saved
    w1, w2, w3 = (rounder(cfg, "w")(a) for a in w)
    dt, ch, planar = cfg.dt, 0 if cfg.kind == "planar" else 3, cfg.kind == "planar"
    pixels = (1, 2, 3) if planar else (0, 1, 2)
    scaled = "f16" in (cfg.dtype, cfg.wgrad)
    if scaled:  # linear in g: a power of two puts its largest entry at 2^-4, inside f16's range
        top = jnp.max(jnp.abs(g))
        e = jnp.clip(jnp.where(top > 0, -jnp.floor(jnp.log2(top)) - 4, 0.0), -100, 100)
        g, down = g * jnp.exp2(e), jnp.exp2(-e)
    g3 = [g[i, ..., None] if planar else g[..., i : i + 1] for i in range(C)]
    g2 = jnp.where(h2 > 0, sum(g3[i] * w3[:, i].astype(f32) for i in range(C)), 0)
    g2 = rounder(cfg, "g")(g2.astype(dt))
    dw3 = dot(h2, g.astype(dt), (0, 1, 2), pixels)
    w2t = w2[::-1, ::-1].swapaxes(2, 3).astype(dt)
    d = conv(g2, lax.optimization_barrier(w2t) if cfg.barrier else w2t)
    wdt = dt if cfg.wgrad == "same" else DTYPES[cfg.wgrad]
    dw2 = conv_weight_gradient(h1.astype(wdt), g2.astype(wdt))
    g1 = rounder(cfg, "g")(jnp.where(h1 > 0, d, 0))
    dw1 = dot(x.astype(dt), g1, pixels, (0, 1, 2))
    wx = w1[: sum(widths)].astype(dt)
    gx = dot(wx, g1, (1,), (3,)) if planar else dot(g1, wx, (3,), (1,))
    at = [sum(widths[:i]) for i in range(1, len(widths))]
    dw = (dw1, dw2, dw3)
    if scaled:
        dw, gx = jax.tree.map(lambda a: a.astype(f32) * down, (dw, gx))
    dw = tuple(a.astype(b.dtype) for a, b in zip(dw, w, strict=False))
    return dw, tuple(jnp.split(gx, at, ch)), None


field.defvjp(field_fwd, field_bwd)


# ------------------------------------------------------- models, loss, training step


def flops(model, batch, side):
    """Of a training step, unpadded: three times forward, two for each multiply-add."""
    m = MODELS[model]
    k, px = m["k"], batch * side * side
    each = [2 * px * (a * C * k + 9 * k * k + k * C) for a in m["ms"]]
    return 3 * (sum(each) / len(each) * m["evals"] + 2 * px * C * 10)


def init(key, model, side):
    m = MODELS[model]
    k, n = m["k"], side * side * C

    def u(i, shape, fan_in):
        return jax.random.uniform(
            jax.random.fold_in(key, i), shape, minval=-(fan_in**-0.5), maxval=fan_in**-0.5
        )

    def one(i, a):
        w = {
            "w1": u(i, (a * C, k), a * C),
            "b1": u(i + 1, (k,), a * C),
            "w2": u(i + 2, (3, 3, k, k), 9 * k),
        }
        return w | {"b2": u(i + 3, (k,), 9 * k), "w3": u(i + 4, (k, C), k), "b3": u(i + 5, (C,), k)}

    return {
        "fields": [one(10 * i, a) for i, a in enumerate(m["ms"])],
        "hw": u(91, (n, 10), n),
        "hb": u(92, (10,), n),
    }


def rk4(f, z, h):
    a = f(z)
    b = f(z + h / 2 * a)
    c = f(z + h / 2 * b)
    return z + h / 6 * (a + 2 * b + 2 * c + f(z + h * c))


def midpoint(f, z, h):
    return z + h * f(z + h / 2 * f(z))


def solve_plain(params, x, model, cfg, precision):
    k_pad = MODELS[model]["k_pad"]
    fs = params["fields"] if precision else [pad_plain(p, k_pad) for p in params["fields"]]
    if model == "NODE":
        step = lambda z, _: (rk4(lambda y: plain_field(fs[0], [y], cfg, precision), z, 0.25), None)
        return lax.scan(step, x, None, length=4, unroll=1 if cfg.scan else 4)[0]
    new = lambda p, past: midpoint(
        lambda y: plain_field(p, [y, *past], cfg, precision), past[0], 0.2
    )
    if model == "NPCDDE5":
        step = lambda past, _: ((new(fs[0], past), *past[:-1]), None)
        return lax.scan(step, (x,) * 5, None, length=5, unroll=1 if cfg.scan else 5)[0][0]
    past = (x,)
    for p in fs:
        past = (new(p, past), *past)
    return past[0]


def solve_packed(params, x, model, cfg):
    """Unrolled. The states before zero equal the data x: their weights add, x gets no gradient."""
    ws = [pack(p, MODELS[model]["k_pad"]) for p in params["fields"]]
    if cfg.cast_once:
        ws = [tuple(a.astype(cfg.dt) for a in w) for w in ws]
    x = lax.optimization_barrier(x.transpose(3, 0, 1, 2)) if cfg.kind == "planar" else x
    z, past = x, []  # past: newest first, x left out
    if model == "NODE":
        step = lambda z, _: (rk4(lambda y: field(ws[0], (y,), (), cfg), z, 0.25), None)
        z = lax.scan(step, x, None, length=4, unroll=1 if cfg.scan else 4)[0]
    elif cfg.scan:  # one body for all intervals: every hold is an argument
        f = lambda past: lambda y: field(ws[0], (y, *past), (), cfg)
        step = lambda past, _: ((midpoint(f(past), past[0], 0.2), *past[:-1]), None)
        z = lax.scan(step, (x,) * 5, None, length=5)[0][0]
    else:
        for i in range(5):
            w1, w2, w3 = ws[i] if model == "UNPCDDE5" else ws[0]
            b, n = C * (1 + i), w1.shape[0] - 1
            w1 = jnp.concatenate([w1[:b], w1[b:n].reshape(-1, C, w1.shape[1]).sum(0), w1[n:]])
            f = lambda y, w=(w1, w2, w3), past=tuple(past): field(w, (y, *past), (x,), cfg)
            z = midpoint(f, z, 0.2)
            past = [z, *past]
    return z


def loss(params, x, y, model, cfg, precision=None):
    z = (
        solve_plain(params, x, model, cfg, precision)
        if cfg.kind == "plain"
        else solve_packed(params, x, model, cfg)
    )
    head = params["hw"].reshape(*x.shape[1:], 10)
    if cfg.kind == "planar":  # turn the head's weights, not the state
        logits = (
            lax.dot_general(z, head.transpose(2, 0, 1, 3), (((0, 2, 3), (0, 1, 2)), ((), ())))
            + params["hb"]
        )
        z = z.transpose(1, 2, 3, 0)
    else:
        logits = (
            lax.dot_general(z, head, (((1, 2, 3), (0, 1, 2)), ((), ())), precision=precision)
            + params["hb"]
        )
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)), z


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def value_and_gradient(params, x, y, model, cfg, precision=None):
    return jax.value_and_grad(loss, has_aux=True)(params, x, y, model, cfg, precision)


def training_step(model, cfg):
    def step(state, x, y):
        p, m, v, t = state
        (value, _), g = jax.value_and_grad(loss, has_aux=True)(p, x, y, model, cfg)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        update = lambda p, m, v: (
            p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        )
        return (jax.tree.map(update, p, m, v), m, v, t), value

    return jax.jit(step, donate_argnums=0)


# ------------------------------------------------------- measuring


def seconds(call, repeats, inner):
    """Median, least and most of `repeats` batches of `inner` calls of `call(i)`."""
    for i in range(3):
        r = call(i)
    jax.block_until_ready(r)
    ts = []
    for _ in range(repeats):
        t0 = time.perf_counter()
        for i in range(inner):
            r = call(i)
        jax.block_until_ready(r)
        ts.append((time.perf_counter() - t0) / inner)
    return statistics.median(ts), min(ts), max(ts)


def relative(a, b):
    return float(jnp.linalg.norm((a - b).ravel()) / jnp.linalg.norm(b.ravel()))


def data(batch, side, n=4):
    xs = [jax.random.uniform(jax.random.key(i), (batch, side, side, C)) for i in range(n)]
    return xs, [jax.random.randint(jax.random.key(90 + i), (batch,), 0, 10) for i in range(n)]


@functools.cache
def reference(model, batch, side):
    """Float32 at the highest precision, unpadded, by autodiff."""
    (x, *_), (y, *_) = data(batch, side)
    exact = Config(kind="plain", dtype="f32")
    return jax.block_until_ready(
        value_and_gradient(init(jax.random.key(0), model, side), x, y, model, exact, "highest")
    )


def errors(model, cfg, batch, side):
    (x, *_), (y, *_) = data(batch, side)
    (_, z), g = value_and_gradient(init(jax.random.key(0), model, side), x, y, model, cfg)
    (_, zr), gr = reference(model, batch, side)
    join = lambda t: jnp.concatenate([a.ravel() for a in jax.tree.leaves(t["fields"])])
    out = {"state": relative(z - x, zr - x), "gradient": relative(join(g), join(gr))}
    return out | {
        n: relative(g["fields"][0][n], gr["fields"][0][n])
        for n in ("w1", "w2", "w3", "b1", "b2", "b3")
    }


def measure(model, cfg, batch, side, timed=True):
    row = dict(model=model, **asdict(cfg))
    if timed:
        xs, ys = data(batch, side)
        p = init(jax.random.key(0), model, side)
        zero = jax.tree.map(jnp.zeros_like, p)
        box = [jax.tree.map(jnp.array, (p, zero, zero, jnp.zeros(())))]
        step = training_step(model, cfg)

        def call(i):
            box[0], value = step(box[0], xs[i % len(xs)], ys[i % len(xs)])
            return value

        t0 = time.perf_counter()
        call(0).block_until_ready()
        compile_s = time.perf_counter() - t0
        med, lo, hi = seconds(call, 9, 10)
        row |= {"ms": 1e3 * med, "ms_min": 1e3 * lo, "ms_max": 1e3 * hi, "compile_s": compile_s}
        row |= {"tflops": flops(model, batch, side) / med / 1e12}
    return row | {"error": errors(model, cfg, batch, side)}


def peaks():
    out, product = {}, jax.jit(jnp.dot)
    for name, dt in (("bf16", bf16), ("f16", f16), ("tf32", f32)):
        a, b = (jax.random.normal(jax.random.key(i), (8192, 8192)).astype(dt) for i in range(2))
        out[name + "_tflops"] = (
            2 * 8192**3 / seconds(lambda _, a=a, b=b: product(a, b), 5, 10)[0] / 1e12
        )
    x = jax.random.normal(jax.random.key(0), (1 << 29,))
    scale = jax.jit(lambda x: x * 1.5)
    return out | {"copy_tb_s": 2 * x.nbytes / seconds(lambda _: scale(x), 5, 5)[0] / 1e12}


K = Config
TIMED = [
    *(
        ("NPCDDE5", c)
        for c in (K("plain", scan=True), K("plain"), K("nhwc", barrier=False), K("nhwc"), K())
    ),
    *(("NPCDDE5", c) for c in (K(barrier=False), K(enter="bf16"), K(enter="f16"), K(scan=True))),
    *(("NPCDDE5", c) for c in (K(dtype="f16"), K(dtype="f16", enter="f16"))),
    *(("NPCDDE5", c) for c in (K("plain", "f32"), K(dtype="f32"), K(dtype="f32", wgrad="f16"))),
    *(("NODE", c) for c in (K("plain", scan=True), K("plain"), K("nhwc"), K(), K(enter="f16"))),
    *(
        ("NODE", c)
        for c in (
            K(dtype="f16", enter="f16"),
            K("plain", "f32"),
            K(dtype="f32"),
            K(dtype="f32", wgrad="f16"),
        )
    ),
    *(("UNPCDDE5", c) for c in (K("plain"), K(), K(enter="f16"), K(dtype="f16", enter="f16"))),
    *(("UNPCDDE5", c) for c in (K(dtype="f32"), K(dtype="f32", wgrad="f16"))),
]
ROUNDING = [  # which rounding costs the gradient its accuracy: values only, not timed
    K(round_out=True),
    K(cast_once=True),
    K(enter="bf16", round_out=True, cast_once=True),
    *(K(dtype="f32", round_only=r) for r in ("w", "a", "g", "wa")),
    K(dtype="f32", wgrad="bf16"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("."),
        help="folder for gpu_field_study.jsonl",
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="4 images of 8x8, no timings: a check of the mathematics",
    )
    args = parser.parse_args()
    batch, side = (4, 8) if args.tiny else (256, 32)
    dev = jax.devices()[0]
    lines = [
        {"hardware": dev.device_kind, "jax": jax.__version__, "python": platform.python_version()}
    ]
    if not args.tiny:
        lines.append({"peaks": peaks()})
    print(*lines, sep="\n", flush=True)
    print(
        "model           ms      min      max  TFLOP/s     e(z)  e(grad)  how",
        flush=True,
    )
    jobs = [(m, c, not args.tiny) for m, c in TIMED] + [("NPCDDE5", c, False) for c in ROUNDING]
    args.out.mkdir(parents=True, exist_ok=True)
    for model, cfg, timed in jobs:
        try:
            row = measure(model, cfg, batch, side, timed)
        except Exception as e:  # one variant a backend refuses must not cost the others
            row = dict(model=model, **asdict(cfg), failed=f"{type(e).__name__}: {e}"[:300])
        lines.append(row)
        cells = [f"{row.get(n, float('nan')):8.3f}" for n in ("ms", "ms_min", "ms_max", "tflops")]
        cells += [
            f"{row.get('error', {}).get(n, float('nan')):8.1e}" for n in ("state", "gradient")
        ]
        how = " ".join(
            f"{n}={v}"
            for n, v in asdict(cfg).items()
            if v != getattr(K(), n) or n in ("kind", "dtype")
        )
        print(f"{model:9s}", *cells, "", how, row.get("failed", ""), flush=True)
        (args.out / "gpu_field_study.jsonl").write_text(
            "".join(json.dumps(r) + "\n" for r in lines)
        )
    print("wrote", args.out / "gpu_field_study.jsonl")


if __name__ == "__main__":
    main()
