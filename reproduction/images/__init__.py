"""The paper's image classifiers, 20 models on three data sets, compared with its tables.

A run is one model on one data set with one seed. Its record is one line of JSON, and tables and
figures are made of records alone, wherever and in whatever order the runs were trained.
"""

from .accuracy import image_result as image_result
from .protocol import (
    PRECISIONS as PRECISIONS,
    SOLVERS as SOLVERS,
    ImageRun as ImageRun,
    Protocol as Protocol,
    default_protocol as default_protocol,
)
from .records import RunRecord as RunRecord, list_record_files as list_record_files
from .sweeps import STUDIES as STUDIES, SweepSummary as SweepSummary, plan as plan, sweep as sweep
from .training import load_model as load_model
