"""Files as lagrax writes them, made by hand so that each can be made wrong."""

import hashlib
import json
import os

import numpy as np
import safetensors.numpy

from lagrax.training._checkpoints import compute_digest

# --- a model of Identifier: x' = −x, as a library finds it ----------------------------------------

TS = np.linspace(0.0, 3.0, 31)
YS = np.exp(-TS)[:, None]
ARRAYS = {
    "['members'].field.coefficients": np.array([[[0.0], [-1.0]]], np.float32),
    "['members'].shifts": np.zeros((1, 0), np.float32),
    "['series'][0]['ts']": TS,
    "['series'][0]['ys']": YS,
    "['series'][0]['us']": np.zeros((31, 0)),
    "['series'][0]['filled']": YS,
    "['error']": np.array([1e-3]),
}
ARGUMENTS = {
    "delays": [],
    "field": "library",
    "width": 32,
    "depth": 2,
    "degree": 1,
    "window": None,
    "ensemble": 1,
    "validation": 0.2,
    "iterations": 2000,
    "learning_rate": 0.01,
    "batch_size": 64,
    "patience": 500,
    "steps": None,
    "solver": "Tsit5",
    "seed": 0,
    "progress": True,
}
ABOUT = {
    "format": 1,
    "arguments": ARGUMENTS,
    "periods": [],
    "window": 8,
    "steps": 4,
    "terms": {"powers": [[0], [1]], "used": [[True], [True]]},
    "machine": {},
}


def tensors(arrays, about, digest=None):
    """As `save_checkpoint` writes them, with the digest that belongs to them or another."""
    digest = compute_digest(arrays, about) if digest is None else digest
    return safetensors.numpy.save(arrays, metadata=about | {"digest": digest})


def model(arguments=(), arrays=(), **changes):
    """The two files of a model, with changes to what `model.json` says and to the arrays."""
    about = ABOUT | {"arguments": ARGUMENTS | dict(arguments)} | changes
    kept = {k: v for k, v in (ARRAYS | dict(arrays)).items() if v is not None}
    return {
        "model.json": json.dumps(about).encode(),
        "model.safetensors": tensors(kept, {"format": "1"}),
    }


# --- the folder of a run, and the line of a finished one ------------------------------------------

CONFIG = {"steps": 20, "seeds": 0}
STATE = {"weight": np.arange(3.0, dtype=np.float32)}
METRICS = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n'
CHECKPOINT = "checkpoints/step-00000002.safetensors"


def checkpoint(arrays=None, metrics=METRICS, **changes):
    about = {"step": "2", "seconds": "1.5", "bytes": str(len(metrics))}
    about |= {"metrics": hashlib.sha256(metrics).hexdigest()} | changes
    arrays = {"['weight']": STATE["weight"]} if arrays is None else arrays
    return tensors(arrays, {k: v for k, v in about.items() if v is not None})


def run(**changes):
    """The files of a run, after the second of its steps."""
    files = {
        "lock": b"",
        "config.json": json.dumps({"config": CONFIG, "machine": {}}).encode(),
        "metrics.jsonl": METRICS,
        CHECKPOINT: checkpoint(),
    }
    return files | changes


LINE = {
    "dataset": "cifar10",
    "model": "NODE",
    "seed": 0,
    "epochs": 3,
    "train_loss": [1.0, 0.9, 0.8],
    "test_loss": [1.5, 1.4, 1.3],
    "test_accuracy": [40.0, 53.0, 52.0],
    "nfe": [21, 21, 21],
    "fine_accuracy": 52.5,
    "solver_error": 0.08,
    "solver": "midpoint",
    "steps": 1,
    "rtol": None,
    "precision": "f32",
    "seconds": 40.0,
    "device": "a device",
    "versions": {"jax": "1"},
    "protocol": {"learning_rate": 1e-3, "batch_size": 256, "training_images": 50000},
}


def line(*without, **changes):
    content = {k: v for k, v in (LINE | changes).items() if k not in without}
    return json.dumps(content).encode() + b"\n"


# --- folders --------------------------------------------------------------------------------------


def write(folder, files):
    """`files` by name: bytes, a text, or None for a folder."""
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def listing(folder):
    """All that is in a folder: links by where they lead to, files by their digest."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found
