"""The training loop, with metrics, checkpoints and resuming, on one device or several."""

from ._errors import RunError as RunError, TrainingError as TrainingError
from ._train import Series as Series, Trained as Trained, train as train
