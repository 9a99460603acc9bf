# SPDX-License-Identifier: Apache-2.0
"""Outputs of the model of a finished run on new records."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from dpcohort.data import Dataset, Normalisation, TableColumns, dataset_from_arrays
from dpcohort.data._tables import columns_of_frame
from dpcohort.errors import InputError
from dpcohort.models import build_model, split_features
from dpcohort.models._each_alone import IsolatedOutputs
from dpcohort.runs._run import Run

#: Records that go through the network at once.
_CHUNK = 4096


def model_outputs(
    run: Run, inputs: ArrayLike, *, model: nn.Module | None = None, isolated: bool = False
) -> NDArray[np.float32]:
    """Outputs of the model that was scored, one row a record.

    Args:
        run: a finished one.
        inputs: records as the data set holds them, before they are scaled.
        model: the network, where the run does not know it.
        isolated: compute each record as nothing but a function of that record.

    Raises:
        InputError: the run is not finished, the network is not known, or records do not fit.
    """
    data = records_for(run, inputs, refuse=not isolated)
    network = network_of(run, model, tokens=data.test_inputs.dtype == np.int64)
    head, prepared = split_features(network, data, isolated=isolated)
    records = torch.from_numpy(np.array(prepared.normalised(prepared.test_inputs)))
    outputs = IsolatedOutputs(head, records[:1]) if isolated else head
    with torch.no_grad():
        parts = [outputs(records[at : at + _CHUNK]) for at in range(0, len(records), _CHUNK)]
    found: NDArray[np.float32] = torch.cat(parts).numpy()
    return found


def predicted_table(
    run: Run, table: Any, *, model: nn.Module | None = None
) -> tuple[dict[str, list[Any]], list[str]]:
    """Predictions for the rows of a table, and sentences on cells that are not as was stated.

    Args:
        run: a finished one that was trained on a table.
        table: a DataFrame, or columns by name; it needs neither label nor client.
        model: the network, where the run does not know it.

    Returns:
        ``prediction`` (the class by its name, or a number; several labels by their own names as 0
        and 1), and of classes and labels the probability of each.

    Raises:
        InputError: the run is of no table, or a column is missing.
    """
    cells = columns_of_frame(table)
    inputs, remarks = columns_of(run).encode_inputs(cells)
    outputs, task = model_outputs(run, inputs, model=model), run.task
    values = task.predictions(outputs)
    if task.kind == "multi-label":
        found = {task.called(k): values[:, k].tolist() for k in range(task.outputs)}
    elif task.predicts_classes:
        found = {"prediction": [task.called(one) for one in values.tolist()]}
    else:
        return {"prediction": values.tolist()}, remarks
    chances = task.chances(outputs)
    for k in range(task.outputs):
        found[f"probability of {task.called(k)}"] = chances[:, k].tolist()
    return found, remarks


def columns_of(run: Run) -> TableColumns:
    """What the columns of the table of a run mean, as it was trained.

    Raises:
        InputError: the run is not finished, or of no table.
    """
    if not run.scored_weights:
        _refuse_unfinished(run)
    said = run.inputs.get("columns")
    if said is None:
        raise InputError.because(
            f"the run was trained on {run.settings['data']['name']}, which is no table of columns "
            "that have names. run.predict takes arrays of records."
        )
    return TableColumns(**said)


def records_for(
    run: Run, inputs: ArrayLike, labels: ArrayLike | None = None, *, refuse: bool = True
) -> Dataset:
    """Records as a data set, so that they are checked and scaled as those of the training.

    Args:
        run: that training.
        inputs: of the records, which are test records.
        labels: with them, the records are training records as well.
        refuse: name the first record that cannot be used; where that would tell of a private one,
            it is computed as it is.

    Raises:
        InputError: the training is not finished, does not say how inputs are scaled, or records do
            not fit.
    """
    if not run.scored_weights:
        _refuse_unfinished(run)
    task = run.task
    said = run.inputs.get("inputs")
    if not isinstance(said, dict):
        raise InputError.because(
            "this run does not say how its inputs are scaled: it was trained by an older dpcohort, "
            "or by clients that scale their own. Load its model.safetensors and use it directly."
        )
    array = np.asarray(inputs)
    shape = tuple(run.settings["data"]["input_shape"])
    if array.ndim < 2 or array.shape[1:] != shape:
        raise InputError(
            "shape of inputs", given=array.shape, allowed=f"(records, {', '.join(map(str, shape))})"
        )
    none: NDArray[Any] = np.zeros(
        (1, task.outputs) if task.kind == "multi-label" else 1, dtype=np.int64
    )
    none = none + (0 if task.bounds is None else task.bounds[0])
    normalisation = Normalisation(
        scale=said["scale"], mean=tuple(said["mean"]), std=tuple(said["std"])
    )
    data = dataset_from_arrays(
        "new records",
        train_inputs=array[:1] if labels is None else array,
        train_labels=none if labels is None else labels,
        test_inputs=array,
        test_labels=np.broadcast_to(none, (len(array), *none.shape[1:])),
        normalisation=normalisation,
        task=task,
    )
    if refuse:
        data.refuse_unusable()
    return data


def _refuse_unfinished(run: Run) -> NoReturn:
    place = "FOLDER" if run.path is None else run.path
    raise InputError.because(
        f"the run is not finished ({run.rounds_done} of {run.plan.training.rounds} rounds), so "
        "there is no model to predict with. Let it go on: dpcohort train CONFIG --resume "
        f"--out {place}, or train(..., resume=True, out={str(place)!r})."
    )


def network_of(run: Run, given: nn.Module | None, *, tokens: bool) -> nn.Module:
    """The network with the weights that were scored; the one that is given is not changed."""
    settings: dict[str, Any] = run.settings["model"]
    known = given or run.module
    try:
        network = copy.deepcopy(known) if known is not None else _built(run, settings, tokens)
        network.load_state_dict(
            {name: torch.from_numpy(np.array(value)) for name, value in run.scored_weights.items()}
        )
    except RuntimeError as error:
        raise InputError.because(
            f"the model is not the one that was trained, {settings['name']}: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from None
    return network.cpu().eval()


def _built(run: Run, settings: dict[str, Any], tokens: bool) -> nn.Module:
    data = run.settings["data"]
    try:
        return build_model(
            settings["name"],
            input_shape=tuple(data["input_shape"]),
            classes=int(data["classes"]),
            seed=run.seed,
            options=settings["options"],
            input_dtype=torch.int64 if tokens else torch.float32,
        )
    except InputError as error:
        raise InputError.because(
            f"the network {settings['name']!r} of this run cannot be built here. Give it: "
            f"run.predict(inputs, model=...). ({error})"
        ) from None
