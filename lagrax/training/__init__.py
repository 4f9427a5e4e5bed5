"""Training: one loop with metrics, checkpoints and resuming, on one device or several."""

from ._runs import RunError as RunError
from ._train import (
    Series as Series,
    Trained as Trained,
    TrainingError as TrainingError,
    train as train,
)
