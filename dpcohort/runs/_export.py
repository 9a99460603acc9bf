# SPDX-License-Identifier: Apache-2.0
"""A trained model with its preprocessing for programs without dpcohort: ONNX, scikit-learn, torch.

Each file takes columns of a table as they are (a missing number is NaN, dates are days since 1970)
and gives probabilities and predictions: bounds, fill values, lists of values and the threshold of a
rare class are in it. Models of arrays take arrays. None of the files holds code.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcohort._version import __version__
from dpcohort.atomic_file import atomic_writer
from dpcohort.data import Normalisation, TableColumns
from dpcohort.data._dataset import affine_map
from dpcohort.errors import InputError, missing_extra
from dpcohort.models._moments import without_second_moments
from dpcohort.runs._prediction import columns_of, network_of
from dpcohort.runs._run import Run
from dpcohort.tasks import Task

_Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Exported:
    """What is written of a run, whatever the format.

    Attributes:
        network: with the weights that were scored.
        task: what it predicts.
        shape: of one record as the network sees it.
        multiplier: with ``offset``, how inputs are scaled.
        offset: see ``multiplier``.
        columns: of its table; None of arrays.
    """

    network: nn.Module
    task: Task
    shape: tuple[int, ...]
    multiplier: _Floats
    offset: _Floats
    columns: TableColumns | None

    @classmethod
    def of(cls, run: Run) -> Exported:
        """The model of a finished run.

        Raises:
            InputError: it is not finished, is unknown here, or does not say how inputs are scaled.
        """
        columns = columns_of(run) if "columns" in run.inputs or not run.scored_weights else None
        if "inputs" not in run.inputs:
            raise InputError.because(
                "this run does not say how its inputs are scaled: its clients scale their own. "
                "Load its model.safetensors and use it directly."
            )
        said = run.inputs["inputs"]
        constants = Normalisation(
            scale=said["scale"], mean=tuple(said["mean"]), std=tuple(said["std"])
        )
        multiplier, offset = affine_map(constants)
        return cls(
            network=without_second_moments(network_of(run, None, tokens=False)),
            task=run.task,
            shape=tuple(run.settings["data"]["input_shape"]),
            multiplier=multiplier,
            offset=offset,
            columns=columns,
        )

    @property
    def log_factors(self) -> _Floats:
        """What is taken off the outputs of classes before they are probabilities."""
        zero = np.zeros((1, self.task.outputs))
        found = -np.log(self.task.chances(zero)[0]) if self.task.predicts_classes else zero[0]
        return np.asarray(found - found.min(), np.float32)

    @property
    def leaning(self) -> _Floats:
        """What is taken off outputs before the largest is the class."""
        leaning = self.task.leaning
        return np.asarray(np.zeros(self.task.outputs) if leaning is None else leaning, np.float32)

    @property
    def says(self) -> dict[str, Any]:
        """What a reader of the file has to know, in plain values."""
        task = {"outputs": self.task.outputs, **self.task.to_dict()}
        columns = {} if self.columns is None else {"columns": self.columns.to_dict()}
        return {"dpcohort": __version__, "task": task, "input_shape": list(self.shape), **columns}

    def dense(self, what: str) -> list[tuple[_Floats, _Floats, str]]:
        """Weights, bias and activation of each layer of a network of linear layers.

        Raises:
            InputError: it has others.
        """
        found: list[tuple[_Floats, _Floats, str]] = []
        layers = [one for one in self.network.modules() if not list(one.children())]
        for layer, after in pairwise([*layers, nn.Identity()]):
            if isinstance(layer, nn.Linear):
                weight = layer.weight.detach().numpy()
                bias = np.zeros(len(weight), np.float32)
                bias = bias if layer.bias is None else layer.bias.detach().numpy()
                found.append((weight, bias, _ACTIVATIONS.get(type(after), "")))
            elif not isinstance(layer, nn.Flatten | nn.Identity | nn.ReLU | nn.Tanh):
                raise InputError.because(
                    f"the network has a {type(layer).__name__}, and {what} is written of networks "
                    "of linear layers only. --torch writes any."
                )
        return found


_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "Relu", nn.Tanh: "Tanh"}


class _WithPreprocessing(nn.Module):
    """A network that takes columns as they are and gives probabilities and predictions.

    Of a table one column a feature: numbers, NaN where missing, and of categories the place of the
    value in its list, anything else for other values.
    """

    multiplier: Tensor
    offset: Tensor

    def __init__(self, model: Exported) -> None:
        super().__init__()
        self.network, self.task, self.columns = model.network, model.task, model.columns
        self.shape = model.shape
        around = (-1, *(1,) * (len(model.shape) - 1))
        for name in ("multiplier", "offset"):
            self.register_buffer(name, torch.tensor(getattr(model, name)).reshape(around))
        for name in ("log_factors", "leaning"):
            self.register_buffer(name, torch.tensor(getattr(model, name)))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities (of numbers: the prediction), and predictions."""
        columns = self.columns
        if columns is not None:
            named = [inputs[:, k : k + 1] for k in range(len(columns.features))]
            parts = [_encoded(columns, *one) for one in zip(columns.features, named, strict=True)]
            inputs = torch.cat(parts, dim=1)
        outputs = self.network(inputs.reshape(-1, *self.shape) * self.multiplier + self.offset)
        if self.task.predicts_classes:
            chances = torch.softmax(outputs - self.log_factors, dim=1)
            return chances, (outputs - self.leaning).argmax(1)
        if self.task.kind == "multi-label":
            return torch.sigmoid(outputs), (outputs > 0).to(torch.int64)
        values = outputs[:, 0]
        if self.task.loss == "poisson":
            values = torch.exp(values.clamp(max=50))
        else:
            middle, half = _middle_and_half(self.task)
            values = values * half + middle
        return values[:, None], values


def _encoded(columns: TableColumns, name: str, cells: Tensor) -> Tensor:
    """The inputs that a column becomes."""
    if name in columns.categories:
        hot = (cells == torch.arange(len(columns.categories[name]))).to(cells.dtype)
        return torch.cat([hot, 1 - hot.sum(1, keepdim=True)], dim=1)
    (low, high), (filling, is_told) = columns.ends(name), columns.filled(name)
    is_missing = torch.isnan(cells)
    filled = torch.where(is_missing, filling, cells).clamp(low, high)
    scaled = (filled - (low + high) / 2) * (2 / (high - low))
    return torch.cat([scaled, is_missing.to(cells.dtype)], dim=1) if is_told else scaled


def _middle_and_half(task: Task) -> tuple[float, float]:
    middle, end = task.unscaled(np.array([0.0, 1.0]))
    return float(middle), float(end - middle)


def write_torch(model: Exported, path: Path) -> None:
    """Write a program of torch.export, for ``torch.export.load(path).module()``."""
    width = model.shape if model.columns is None else (len(model.columns.features),)
    example = (torch.zeros(2, *width),)
    records = {0: torch.export.Dim("records")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts
        program = torch.export.export(
            _WithPreprocessing(model).eval(), example, dynamic_shapes=(records,)
        )
        with atomic_writer(path, binary=True) as file:
            told = {"dpcohort.json": json.dumps(model.says)}
            torch.export.save(program, file, extra_files=told)


def write_onnx(model: Exported, path: Path) -> None:
    """Write an ONNX model: an input for each column (text for categories), or one of arrays.

    Raises:
        DataMissingError: onnx is not installed.
        InputError: the network is none of linear layers.
    """
    layers = model.dense("ONNX")
    onnx = _imported("onnx")
    graph = _Graph(onnx)
    columns, task = model.columns, model.task
    if columns is None:
        x = graph.input("inputs", onnx.TensorProto.FLOAT, model.shape)
        around = (-1, *(1,) * (len(model.shape) - 1))
        x = graph("Mul", x, model.multiplier.reshape(around))
        x = graph("Flatten", graph("Add", x, model.offset.reshape(around)), axis=1)
    else:
        x = graph("Concat", *_onnx_columns(graph, onnx, columns), axis=1)
    for weight, bias, activation in layers:
        x = graph("Gemm", x, weight, bias, transB=1)
        x = graph(activation, x) if activation else x
    if task.predicts_classes:
        graph.output("probabilities", graph("Softmax", graph("Sub", x, model.log_factors), axis=1))
        place = graph("ArgMax", graph("Sub", x, model.leaning), axis=1, keepdims=0)
        names = np.array([task.called(k) for k in range(task.outputs)], object)
        kind = onnx.TensorProto.STRING if task.names else onnx.TensorProto.INT64
        found = graph("Gather", names, place, axis=0) if task.names else place
        graph.output("prediction", found, kind, ())
    elif task.kind == "multi-label":
        graph.output("probabilities", graph("Sigmoid", x))
        graph.output("prediction", graph("Cast", graph("Greater", x, np.float32(0)), to=7), 7)
    elif task.loss == "poisson":
        graph.output("prediction", graph("Exp", graph("Min", x, np.float32(50))))
    else:
        middle, half = map(np.float32, _middle_and_half(task))
        graph.output("prediction", graph("Add", graph("Mul", x, half), middle))
    made = graph.model()
    onnx.helper.set_model_props(made, {"dpcohort": json.dumps(model.says)})
    onnx.checker.check_model(made)
    with atomic_writer(path, binary=True) as file:
        file.write(made.SerializeToString())


def _onnx_columns(graph: _Graph, onnx: Any, columns: TableColumns) -> Iterator[str]:
    for name in columns.features:
        if name in columns.categories:
            cells = graph.input(name, onnx.TensorProto.STRING, (1,))
            words = list(columns.words(name))
            hot = graph("OneHotEncoder", cells, domain="ai.onnx.ml", cats_strings=words, zeros=1)
            hot = graph("Flatten", hot, axis=1)
            yield hot
            yield graph("Sub", np.float32(1), graph("ReduceSum", hot, np.array([1]), keepdims=1))
            continue
        (low, high), (filling, is_told) = columns.ends(name), columns.filled(name)
        cells = graph.input(name, onnx.TensorProto.FLOAT, (1,))
        is_missing = graph("IsNaN", cells)
        filled = graph("Where", is_missing, np.float32(filling), cells)
        inside = graph("Clip", filled, np.float32(low), np.float32(high))
        centred = graph("Sub", inside, np.float32((low + high) / 2))
        yield graph("Mul", centred, np.float32(2 / (high - low)))
        if is_told:
            yield graph("Cast", is_missing, to=onnx.TensorProto.FLOAT)


class _Graph:
    """An ONNX graph that grows by one node at a time; arrays become its constants."""

    def __init__(self, onnx: Any) -> None:
        self._onnx, self._helper = onnx, onnx.helper
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: list[Any] = []

    def __call__(self, operator: str, *given: Any, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of what it gives."""
        names = [one if isinstance(one, str) else self._constant(one) for one in given]
        made = f"node {len(self._nodes)}"
        self._nodes.append(
            self._helper.make_node(operator, names, [made], domain=domain, **attributes)
        )
        return made

    def _constant(self, value: Any) -> str:
        name = f"constant {len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def input(self, name: str, kind: int, shape: Sequence[int]) -> str:
        """Add an input for so many records."""
        made = self._helper.make_tensor_value_info(name, kind, ["records", *shape])
        self._inputs.append(made)
        return name

    def output(self, name: str, given: str, kind: int = 1, shape: Sequence[Any] = (None,)) -> None:
        """Add an output for so many records."""
        self._nodes.append(self._helper.make_node("Identity", [given], [name]))
        made = self._helper.make_tensor_value_info(name, kind, ["records", *shape])
        self._outputs.append(made)

    def model(self) -> Any:
        """The finished model."""
        helper = self._helper
        graph = helper.make_graph(
            self._nodes, "dpcohort", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=8, producer_name="dpcohort"
        )


def write_sklearn(model: Exported, path: Path) -> None:
    """Write a pipeline of scikit-learn's own parts in skops' format; linear models of tables only.

    Raises:
        DataMissingError: skops or pandas is not installed.
        InputError: the model is another.
    """
    layers, columns, task = model.dense("a pipeline"), model.columns, model.task
    several = task.kind == "multi-label" or (task.is_uneven and task.outputs > 2)
    if columns is None or len(layers) != 1 or several:
        raise InputError.because(
            "a pipeline of scikit-learn is written of linear models of a table that predict a "
            "class, a number or a count. --onnx or --torch write others."
        )
    skops, pandas = _imported("skops.io"), _imported("pandas")
    parts, rows, weight = _sklearn_columns(columns, layers[0][0].astype(np.float64))
    compose, pipeline = _imported("sklearn.compose"), _imported("sklearn.pipeline")
    encoder = compose.ColumnTransformer(parts).fit(frame := pandas.DataFrame(rows))
    bias = layers[0][1].astype(np.float64) + weight.pop()
    last = _sklearn_linear(task, np.stack(weight, axis=1), bias - model.log_factors)
    made = pipeline.Pipeline([("columns", encoder), ("model", last)])
    made.predict(frame)
    with atomic_writer(path, binary=True) as file:
        file.write(skops.dumps(made))


def _sklearn_columns(
    columns: TableColumns, weight: NDArray[np.float64]
) -> tuple[list[Any], dict[str, list[Any]], list[NDArray[np.float64]]]:
    """Transformers of columns, two rows to fit them on, and weights in the order of what they give.

    The last of the weights goes into the bias: of categories, ``other`` is where all is 0.
    """
    impute, prepare = _imported("sklearn.impute"), _imported("sklearn.preprocessing")
    pipeline = _imported("sklearn.pipeline").Pipeline
    parts, rows, kept, at = [], {}, [], 0
    bias = np.zeros(len(weight))
    for name in columns.features:
        if name in columns.categories:
            values: NDArray[Any] = np.array(columns.categories[name])
            values = values.astype(object) if values.dtype.kind == "U" else values
            order = np.argsort(values)
            one_hot = prepare.OneHotEncoder(
                categories=[values[order]], handle_unknown="ignore", sparse_output=False
            )
            parts.append((name, one_hot, [name]))
            rows[name] = [values[0], values[-1]]
            other = weight[:, at + len(values)]
            kept += [weight[:, at + k] - other for k in order]
            bias += other
            at += len(values) + 1
            continue
        (low, high), (filling, is_told) = columns.ends(name), columns.filled(name)
        fill = impute.SimpleImputer(strategy="constant", fill_value=filling)
        scale = prepare.MinMaxScaler((-1, 1), clip=True)
        parts.append((name, pipeline([("fill", fill), ("scale", scale)]), [name]))
        rows[name] = [low, high]  # what the scaler is fitted on
        kept.append(weight[:, at])
        at += 1
        if is_told:
            missing = impute.MissingIndicator(features="all")
            parts.append((f"{name} is missing", missing, [name]))
            kept.append(weight[:, at])
            at += 1
    return parts, rows, [*kept, bias]


def _sklearn_linear(task: Task, weight: NDArray[np.float64], bias: NDArray[np.float64]) -> Any:
    """A fitted linear model with these weights."""
    linear = _imported("sklearn.linear_model")
    zeros = np.zeros((max(2, task.outputs), weight.shape[1]))
    if not task.predicts_classes:
        made = linear.PoissonRegressor() if task.loss == "poisson" else linear.LinearRegression()
        made.fit(zeros, np.ones(len(zeros)))
        middle, half = (0.0, 1.0) if task.loss == "poisson" else _middle_and_half(task)
        made.coef_, made.intercept_ = weight[0] * half, float(bias[0] * half + middle)
        return made
    classes = np.array([task.called(k) if task.names else k for k in range(task.outputs)])
    made = linear.LogisticRegression().fit(zeros, classes)
    made.classes_ = classes  # fit sorts them
    made.coef_, made.intercept_ = weight, bias
    if task.outputs == 2:
        made.coef_, made.intercept_ = weight[1:] - weight[:1], bias[1:] - bias[:1]
    if not task.is_uneven:
        return made
    threshold = task.class_shares[1] / sum(task.class_shares)
    fixed = _imported("sklearn.model_selection").FixedThresholdClassifier(
        made, threshold=threshold, response_method="predict_proba", pos_label=classes[1]
    )
    fixed.fit(zeros, classes).estimator_ = made
    return fixed


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None


#: What writes each format, by the name of its option.
FORMATS: dict[str, Callable[[Exported, Path], None]] = {
    "onnx": write_onnx,
    "sklearn": write_sklearn,
    "torch": write_torch,
}
