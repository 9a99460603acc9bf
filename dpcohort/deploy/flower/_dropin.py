# SPDX-License-Identifier: Apache-2.0
"""Privacy for a Flower app that is there already: a strategy for its server, a mod for its client.

::

    strategy = PrivacyAwareStrategy("plan.json", run="spring", out="run")  # where FedAvg stood
    app = ClientApp(mods=[PrivacyMod()])

The plan's schedule says who takes part; every noisy update is counted in the client's own ledger
before it is computed; the server's run folder has the receipts of every other run.

**What is protected.** A mod sees what an app's training made of the records, not the records. So by
default the whole update is one thing: it is clipped to C and gets noise, and whatever the client's
data are exchanged for, it moves by at most 2C. That is replace-one at rate 1 with the client as the
record; it covers all records together, so each of them as well. Plans for it have clients of size 1
(:func:`clients_of` makes such a list). It needs much noise, for nobody's records hide among others.
Where the app can hand over its records, ``PrivacyMod(records=..., network=...)`` takes the guard's
own steps on them in place of the app's training: every record is clipped by itself, batches are
drawn, and plans are those of any run.

**What is weaker than with a guard.** Flower ships the code of a client app from the server, and the
mod is part of it: who controls the server can leave it out, and it runs where data can be read. It
protects from everybody who sees updates, models and logs of a server that runs this code. An answer
leaves when it is ready, so its time tells how long training took. Against the server's own operator
only a guard (:mod:`dpcohort.deploy.guard`) helps. Receipts say which of the two it was.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from dpcohort.atomic_file import owner_only
from dpcohort.clients import Population
from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower._adapter import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    FlowerGrid,
    Message,
    RecordDict,
    Result,
    Strategy,
    body_of,
    record_of,
)
from dpcohort.deploy.flower._apps import RoundPrinter, told
from dpcohort.deploy.flower._exchange import Exchange
from dpcohort.deploy.flower._federation import (
    Federation,
    check_agreements,
    check_no_public_client,
    disagreements,
    unit_of,
)
from dpcohort.deploy.flower._kit import file_name
from dpcohort.deploy.flower._messages import hello_message, open_message, read_hello
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.deploy.flower._rounds import GuardTrainer
from dpcohort.deploy.guard._files import GuardedData, check_records, identity_beside
from dpcohort.deploy.guard._handler import GuardHandler, RefusedError, within_terms
from dpcohort.deploy.guard._protocol import DrawRequest, Hello, ReceiptRequest, Vector, encode
from dpcohort.deploy.guard._terms import GuardTerms, ModelTerms
from dpcohort.deploy.guard._training import LocalTraining, Sampling, layout_of
from dpcohort.deploy.ledger import ClientLedger
from dpcohort.deploy.whole_update import check_whole, noisy_update
from dpcohort.engine import Lattice
from dpcohort.engine.clipping import FlatLayout
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plain_text import one_line, some, visible
from dpcohort.plan import Plan
from dpcohort.runs import Run
from dpcohort.runs._training import run_rounds

__all__ = ["PrivacyAwareStrategy", "PrivacyMod", "clients_of"]

#: What both sides call the model: which one it is, only the app knows. Its layout is compared.
_MODEL = ModelTerms(name="flower-app", input_shape=(1,), classes=2)
#: Records of a message beside the app's own two and the body of ours.
_LAYOUT, _FIXED, _ARRAYS, _CONFIG = "dpcohort.layout", "dpcohort.fixed", "arrays", "config"
#: Mods of Flower that clip or add noise by an account of their own.
_NOISY = ("LocalDpMod", "fixedclipping_mod", "adaptiveclipping_mod", "PrivacyMod")
_POLL = 0.5

Records = tuple[ArrayLike, ArrayLike]


def clients_of(
    partitions: Any,
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    records: bool = False,
    split: str = "train",
) -> Population:
    """The clients that a partitioner of flwr-datasets makes, for a plan or ``clients.csv``.

    A natural id (``NaturalIdPartitioner``) is the client's id; otherwise it is the partition's
    number, as ``partition-id`` in the configuration of a node.

    Args:
        partitions: a ``Partitioner`` that has its data set, or a ``FederatedDataset``.
        epsilon: of each client, or one for all.
        delta: of each client, or one for all.
        records: a record is what a plan protects, and sizes are numbers of records. Otherwise a
            client as a whole is, and every size is 1.
        split: of a ``FederatedDataset``.

    Example:
        >>> class Halves:  # as flwr_datasets.partitioner.IidPartitioner(num_partitions=2)
        ...     num_partitions = 2
        ...     def load_partition(self, i): return range(50)
        >>> clients_of(Halves(), epsilon=8.0, delta=1e-5).sizes.tolist()
        [1, 1]
        >>> clients_of(Halves(), epsilon=8.0, delta=1e-5, records=True).sizes.tolist()
        [50, 50]
    """
    splits = getattr(partitions, "partitioners", None)  # of a FederatedDataset; loads the data
    if splits is not None and split not in splits:
        raise InputError("split", given=split, allowed=", ".join(sorted(splits)))
    found = partitions if splits is None else splits[split]
    if not hasattr(found, "num_partitions") or not hasattr(found, "load_partition"):
        allowed = "a partitioner of flwr-datasets, or a FederatedDataset"
        raise InputError("partitions", given=type(partitions).__name__, allowed=allowed)
    count = int(found.num_partitions)
    sizes = [len(found.load_partition(i)) if records else 1 for i in range(count)]
    names = getattr(found, "partition_id_to_natural_id", {})
    ids = [str(names.get(i, i)) for i in range(count)]
    shared = [np.full(count, one) if np.ndim(one) == 0 else one for one in (epsilon, delta)]
    return Population.from_arrays(ids=ids, sizes=sizes, epsilon=shared[0], delta=shared[1])


@dataclass(frozen=True, eq=False)
class _Arrays:
    """A model as an app sends it, by name; numbers with a fraction are trained, others stay.

    Attributes:
        like: every array, in the app's order; of trained ones shape and type count.
    """

    like: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, record: Any) -> _Arrays:
        return cls({str(name): array.numpy() for name, array in record.items()})

    @classmethod
    def read(cls, content: Any) -> _Arrays:
        """What the strategy put beside its words; whoever wrote it may be anybody."""
        fixed = content.get(_FIXED, {})
        like = {}
        for name, shape, kind in json.loads(str(content[_LAYOUT]["arrays"])):
            empty = np.broadcast_to(np.zeros((), np.dtype(kind)), [int(one) for one in shape])
            like[str(name)] = empty if _is_trained(empty) else fixed[name].numpy()
        return cls(like)

    def beside(self) -> dict[str, Any]:
        """The layout as records of a message."""
        said = [[name, list(one.shape), one.dtype.name] for name, one in self.like.items()]
        fixed = {name: Array(one) for name, one in self.like.items() if not _is_trained(one)}
        records: dict[str, Any] = {_LAYOUT: ConfigRecord({"arrays": json.dumps(said)})}
        return records | ({_FIXED: ArrayRecord(fixed)} if fixed else {})

    @cached_property
    def module(self) -> nn.Module:
        """The arrays as a module without a forward pass, under the same names."""
        root = nn.Module()
        try:
            for name, array in self.like.items():
                *path, last = name.split(".")
                place = root
                for part in path:
                    if part not in dict(place.named_children()):
                        place.add_module(part, nn.Module())
                    place = place.get_submodule(part)
                tensor = torch.from_numpy(np.array(array))
                if _is_trained(array):
                    place.register_parameter(last, nn.Parameter(tensor.float()))
                else:
                    place.register_buffer(last, tensor)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError.because(
                f"the array {one_line(name)!r} cannot be kept: {error}."
            ) from None
        return root

    @cached_property
    def places(self) -> FlatLayout:
        return FlatLayout(self.module)

    def flat(self, record: Any) -> NDArray[np.float64]:
        """The trained arrays of a record as one vector; names and shapes must be the layout's."""
        vector = np.empty(self.places.dimension)
        for name, (place, shape) in self.places.places.items():
            array = record[name].numpy()
            if array.shape != tuple(shape):
                raise ValueError("an array of another shape")
            vector[place] = array.reshape(-1)
        return vector

    def record(self, vector: NDArray[Any]) -> Any:
        """A vector as the app's arrays, in their own types and order."""
        trained = {
            name: vector[place].reshape(tuple(shape))
            for name, (place, shape) in self.places.places.items()
        }
        found = {
            name: Array(np.asarray(trained.get(name, one), dtype=one.dtype))
            for name, one in self.like.items()
        }
        return ArrayRecord(found)


def _is_trained(array: NDArray[Any]) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))


class PrivacyMod:
    """A mod for an app's ClientApp: count, train, clip, add noise, and send nothing else.

    The node's owner makes a ledger (``dpcohort ledger init``), accepts the run in it (``dpcohort
    ledger accept``), and names it when the SuperNode is started:
    ``--node-config 'client="north" ledger="/srv/north.ledger"'``. In a simulation, where nodes are
    not configured one by one, clients are called by their ``partition-id`` and their ledgers lie in
    the folder ``ledgers`` of the run-config, as ``ID.ledger``.

    Answers to anything but the strategy's training messages are refused, an app's evaluation on its
    records among them: metrics and numbers of examples are answers that nobody paid for. If the
    app's training fails, or gives arrays of another form, noise alone is sent, for that it failed
    may tell of a record; the client's own log says so.

    It must be in ``ClientApp(mods=[...])``, so that it covers every kind of message. What it does
    not protect from is at the head of this module: the server ships the code it is in.

    Args:
        records: a function of Flower's ``context`` that returns the client's inputs and labels
            (arrays with a row a record). With it every record is protected by itself: the guard's
            own steps on ``network``, with cross-entropy, stand in for the app's training.
        network: a function without arguments that returns the torch module which is trained. Its
            parameters have the names of the arrays that the server sends.

    Example:
        >>> mod = PrivacyMod()
        >>> mod.unit
        'client'
    """

    def __init__(
        self,
        records: Callable[[Any], Records] | None = None,
        network: Callable[[], nn.Module] | None = None,
    ) -> None:
        if (records is None) != (network is None):
            raise InputError.because(
                "records and network go together: give PrivacyMod both or none."
            )
        self._records, self._network = records, network

    @property
    def unit(self) -> str:
        """What is protected: a whole ``client``, or a ``record``."""
        return "client" if self._records is None else "record"

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Answer a message, as Flower calls a mod."""
        try:
            body = body_of(message.content)
        except Exception:  # written by another program: it may be anything
            body = b""
        if str(message.metadata.message_type) != "train" or not body:
            words = (
                "PrivacyMod answers training messages of PrivacyAwareStrategy and no others: what "
                "else an app computes from its records carries no noise. Nothing was computed."
            )
            return Message(Error(code=0, reason=words), reply_to=message)
        try:
            answers = self._answers(body, message, context, call_next)
        except RefusedError as refused:
            answers = [refused.refusal]
        return Message(record_of(b"".join(map(encode, answers))), reply_to=message)

    def _answers(self, body: bytes, message: Any, context: Any, call_next: Any) -> list[Any]:
        others = [name for name in _mods_around(self, call_next) if name in _NOISY]
        if others:
            raise RefusedError(
                "two-mods",
                f"{others[0]} is among the app's mods beside PrivacyMod, and both clip or add "
                "noise: keep one of them",
            )
        name, path = _owner(context)
        try:
            opened = open_message(body)
        except DpcohortError as error:
            raise RefusedError("message", str(error)) from None
        if opened.client not in ("", name):
            raise RefusedError("other-client", f"this node is {name}")
        run = str(opened.requests[0].run)
        try:
            with ClientLedger(path) as ledger:
                terms = self._terms(ledger, name, run)
                records, trainer = self._trainer(message, context, call_next)
                handler = GuardHandler(
                    terms,
                    records=records,
                    ledger=ledger,
                    trainer=trainer,
                    identity=identity_beside(path),
                    log=_say,
                )
                answers = [handler.answer(request) for request in opened.requests]
                if isinstance(opened.requests[0], DrawRequest):
                    answers.append(handler.answer(ReceiptRequest(run=run)))
                return answers
        except DpcohortError as error:
            _say(str(error))
            raise RefusedError("ledger", "its ledger cannot be used; its log says why") from None

    def _terms(self, ledger: ClientLedger, name: str, run: str) -> GuardTerms:
        """What the ledger says of the client, as a guard's terms.

        Raises:
            RefusedError: it has no such client, or terms for records where updates get noise.
        """
        cap = ledger.cap(name)
        if cap is None:
            raise RefusedError("no-ledger", f"its ledger knows no data set {name!r}")
        accepted = ledger.accepted(name).get(run)  # one that is not is the handler's to refuse
        with within_terms():
            if cap.unit != "record" and self.unit == "record":
                raise InputError.because(
                    f"its ledger's cap covers a {cap.unit}, and a mod protects records or whole "
                    "clients: persons need a guard (dpcohort flower init), or PrivacyMod()."
                )
            if accepted is not None and self.unit == "client":
                check_whole(accepted)
        said = cap.model_dump(include={"neighbours", "across_runs", "per"})
        said |= {"lifetime_epsilon": cap.epsilon, "lifetime_delta": cap.delta}
        return GuardTerms(dataset=name, model=_MODEL, **said)

    def _trainer(self, message: Any, context: Any, call_next: Any) -> tuple[int, Any]:
        if self._records is None or self._network is None:
            try:
                return 1, _WholeUpdate(message, context, call_next)
            except (KeyError, ValueError, TypeError, DpcohortError) as error:
                words = f"the message's layout cannot be read ({type(error).__name__})"
                raise RefusedError("message", words) from None
        try:
            data, model, network = _own_records(self._records(context), self._network())
            return len(data), LocalTraining(model, data, module=network)
        except Exception as error:  # the app's code, on the client's records
            own = isinstance(error, DpcohortError)  # our words hold nothing of a record
            _say(f"records or network cannot be used: {error if own else _place(error)}")
            words = "its records or its network cannot be used; its log says why"
            raise RefusedError("records", words) from None


class _WholeUpdate:
    """An app's training as the guard's handler asks for it: the whole update is one record.

    Args:
        message: the strategy's, with the model's layout.
        context: Flower's.
        call_next: the app.
    """

    def __init__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> None:
        self._arrays = _Arrays.read(message.content)
        self._message, self._context, self._next = message, context, call_next
        self.dimension = self._arrays.places.dimension
        self.layout = layout_of(self._arrays.module)

    def update(
        self, parameters: Vector, lattice: Lattice, sampling: Sampling, step_sizes: Sequence[float]
    ) -> Vector:
        """The step size times w - w', clipped as one vector, with its noise."""
        (alpha,) = step_sizes  # the terms say that there is one, and the rate is 1
        trained = self._trained(parameters)
        moved = np.zeros(self.dimension) if trained is None else parameters - trained
        return noisy_update(moved, lattice, scale=alpha / sampling[2])

    def _trained(self, parameters: NDArray[Any]) -> NDArray[np.float64] | None:
        """What the app's own training makes of the parameters; None where it failed."""
        message, asked = self._message, self._message.content
        try:
            message.content = RecordDict(
                {_ARRAYS: self._arrays.record(parameters), _CONFIG: asked[_CONFIG]}
            )
            replied = self._next(message, self._context).content
            (record,) = replied.array_records.values()
            return self._arrays.flat(record)
        except Exception as error:  # the app's code, on the client's records
            _say(f"the training failed ({_place(error)}): noise alone is sent.")
            return None
        finally:
            message.content = asked


def _own_records(records: Records, network: nn.Module) -> tuple[GuardedData, ModelTerms, nn.Module]:
    """An app's records and network as the guard's training takes them."""
    inputs, labels = (np.asarray(one) for one in records)
    if inputs.dtype.kind not in "iu":
        inputs = inputs.astype(np.float32)
    kind = torch.from_numpy(inputs[:1]).dtype
    with torch.no_grad():
        outputs = int(network(torch.zeros((1, *inputs.shape[1:]), dtype=kind)).shape[-1])
    model = ModelTerms(name=_MODEL.name, input_shape=inputs.shape[1:], classes=outputs)
    check_records("records", inputs, labels, model)
    if not np.isfinite(inputs).all():
        raise InputError.because("there are inputs that are not finite.")
    inputs = inputs.astype(np.int64) if inputs.dtype.kind in "iu" else inputs
    return GuardedData(inputs, labels.astype(np.int64), ""), model, network


def _owner(context: Any) -> tuple[str, Path]:
    """The client's name and its ledger, by the node's own configuration."""
    node, run = dict(context.node_config), dict(context.run_config)
    name, path = node.get("client", node.get("partition-id")), node.get("ledger")
    if name is not None and not path and run.get("ledgers"):
        path = Path(str(run["ledgers"])) / f"{file_name(str(name))}.ledger"
    if name is None or not path:
        raise RefusedError(
            "no-ledger",
            "its node has no ledger, so nothing can be counted and nothing is computed. Start the "
            'SuperNode with --node-config \'client="NAME" ledger="FILE"\'',
        )
    if not Path(str(path)).is_file():
        raise RefusedError(
            "no-ledger",
            "the ledger that its node names is not there. Its owner makes it with: dpcohort ledger "
            "init",
        )
    return str(name), Path(str(path))


def _mods_around(own: Any, call_next: Any) -> Iterator[str]:
    """Names of the other mods of the app, inside and outside of our own.

    Flower wraps each mod in a function that holds it and the next one.
    """
    inner = call_next
    while "_mod" in (names := getattr(getattr(inner, "__code__", None), "co_freevars", ())):
        held = dict(zip(names, (cell.cell_contents for cell in inner.__closure__), strict=True))
        yield _name(held["_mod"])
        inner = held.get("_ffn")
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        mod = frame.f_locals.get("_mod") if frame.f_code.co_name == "new_ffn" else None
        if mod is not None and mod is not own:
            yield _name(mod)


def _name(mod: Any) -> str:
    return str(getattr(mod, "__name__", type(mod).__name__))


def _place(error: Exception) -> str:
    """What went wrong in an app's code and where, without its text: that may hold a record."""
    code, line = list(traceback.walk_tb(error.__traceback__))[-1]
    return f"{type(error).__name__}, {Path(code.f_code.co_filename).name}, line {line}"


def _say(words: str) -> None:
    """To the log of the client's own node."""
    print(f"dpcohort: {visible(words)}", file=sys.stderr, flush=True)


class _Nodes(FlowerGrid):
    """Flower's grid, whose nodes are known by what their mods call themselves.

    A node that lies about its name spends its own ledger all the same.

    Args:
        grid: Flower's.
        run: name of the run, which nodes are asked about.
        beside: records that every message carries beside our words.
        config: what the app is told in every round.
    """

    def __init__(
        self, grid: Any, *, run: str, beside: Mapping[str, Any], config: Mapping[str, Any]
    ) -> None:
        super().__init__(grid)
        self._run, self._beside, self._config = run, dict(beside), dict(config)
        self._asked: dict[str, int] = {}
        #: What each node that was asked answered, or why it did not; None while nothing came.
        self.answers: dict[int, Hello | str | None] = {}

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Name and number of the nodes that are online; new ones are asked who they are."""
        online = [
            int(node.node_id)
            for node in self._grid.get_nodes()
            if getattr(node, "status", "") in ("", "online")
        ]
        self.answers = {node: said for node, said in self.answers.items() if node in online}
        new = [node for node in online if node not in self.answers]
        asking = hello_message("", run=self._run)
        names = self.push([(node, asking) for node in new], group="terms", ttl=600.0) if new else []
        for node, name in zip(new, names, strict=True):
            if name:
                self._asked[name], self.answers[node] = node, None
        for name, body, error in self.pull(list(self._asked)) if self._asked else ():
            self.answers[self._asked.pop(name)] = error if body is None else read_hello(body)
        found = {  # a node that came back has another number, and the later one counts
            hello.dataset: node
            for node in online
            if isinstance(hello := self.answers.get(node), Hello)
        }
        return list(found.items())

    def _content(self, body: bytes, group: str) -> Any:
        """Our words, with what the app is told beside them."""
        number = {"server-round": int(group) + 1} if group.isdecimal() else {}
        config = ConfigRecord({**self._config, **number})
        return RecordDict({**record_of(body), **self._beside, _CONFIG: config})


class PrivacyAwareStrategy:
    """A strategy for a Flower app: a plan's cohorts, its weights, its noise, and receipts.

    Stands where ``FedAvg`` stood; ``start`` is called as before and returns Flower's ``Result``.
    Who is asked in which round is the plan's schedule. Updates carry their noise when they arrive
    (:class:`PrivacyMod`); they are combined by the plan's public weights, never by numbers of
    examples, and clients send no metrics. ``out`` is a run folder for ``dpcohort verify`` and
    ``dpcohort receipt``.

    What this protects from, and what only a guard does, is at the head of this module. In short:
    the server ships the code that adds the noise, so this keeps a promise to everybody but an
    operator who breaks it on purpose.

    Args:
        plan: a plan, or the path of one. Where every client has size 1, clients as a whole are
            protected (``neighbours = "replace-one"``, ``sampling_rate = 1``, one local step).
        run: name of the run, which every client's owner has accepted.
        out: the run folder.
        resume: go on with the run in ``out``; clients send updates that they have counted again.
        learning_rate: factor on every update; the step size where records are protected.
        aggregation: name of an aggregation rule (``dpcohort rules``).
        quorum: share of a round's updates below which the round is passed over.

    Example:
        >>> from dpcohort import Contract, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[1] * 3, epsilon=[4, 8, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, sampling_rate=1.0), seed=0,
        ...                  accountant=Contract(neighbours="replace-one"))
        >>> PrivacyAwareStrategy(plan, run="spring", out="run").unit
        'client'
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        run: str,
        out: str | Path,
        resume: bool = False,
        learning_rate: float = 1.0,
        aggregation: str = "mean",
        quorum: float = 0.5,
    ) -> None:
        Strategy.register(type(self))  # one of Flower's own kind, without loading it beforehand
        if isinstance(plan, str | Path):
            plan = Plan.load(plan)
            plan.verify_unless_made_here()
        _check_plan(plan)
        self.plan, self._run, self._out, self._resume = plan, run, Path(out), bool(resume)
        self._federation = Federation(
            plan=plan,
            model=_MODEL,
            clients=None,
            run=run,
            optimiser={"learning_rate": float(learning_rate)},
            aggregation={"rule": aggregation},
            quorum=quorum,
        )
        #: The finished run.
        self.run: Run | None = None

    @property
    def unit(self) -> str:
        """What is protected: a whole ``client``, or a ``record``."""
        return unit_of(self.plan)

    def summary(self) -> None:
        """Say what will be done, as Flower's strategies do."""
        what = "every client as a whole" if self.unit == "client" else "every record of a client"
        print(f"dpcohort: {self.plan}; protects {what}; run {self._run!r} in {self._out}")

    def start(
        self,
        grid: Any,
        initial_arrays: Any,
        num_rounds: int | None = None,
        timeout: float = 3600.0,
        train_config: Mapping[str, Any] | None = None,
        evaluate_config: Mapping[str, Any] | None = None,
        evaluate_fn: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """Execute the plan; the arguments are those of Flower's strategies.

        Args:
            grid: Flower's.
            initial_arrays: the model to start from.
            num_rounds: those of the plan, if it is said at all.
            timeout: seconds for a round, and for all drawn clients to come online.
            train_config: what the app is told in every round.
            evaluate_config: of no use: clients evaluate nothing, for their results would tell.
            evaluate_fn: evaluates the model on the server, on records that are public.

        Raises:
            InputError: a client is missing, one is there that the plan does not know, or an owner's
                terms do not cover the plan; nothing is spent then.
        """
        rounds = self.plan.training.rounds
        try:
            if num_rounds not in (None, rounds):
                raise InputError(
                    "num_rounds",
                    given=num_rounds,
                    allowed=f"{rounds}, as in the plan",
                    next_step="Its noise was calibrated for these rounds; leave num_rounds out.",
                )
            self.summary()
            arrays = _Arrays.of(initial_arrays)
            _check_arrays(arrays)
            job = FederatedJob.of(replace(self._federation, timeout=timeout), model=arrays.module)
            nodes = _Nodes(grid, run=self._run, beside=arrays.beside(), config=train_config or {})
            drawn = job.federation.drawn
            hellos = _agreed(nodes, self.plan, drawn, timeout=timeout)
            problems = {
                client: self._problems(job, client, hello) for client, hello in hellos.items()
            }
            check_agreements(problems)
            exchange = Exchange(nodes, {c: c for c in drawn}, timeout=timeout, poll=_POLL)
            result = Result()

            def evaluated(done: int) -> str:
                """What the app finds of the model after so many rounds, in words."""
                now = part.state.parameters.detach().cpu().numpy()
                found = None if evaluate_fn is None else evaluate_fn(done, arrays.record(now))
                if found is None:
                    return ""
                result.evaluate_metrics_serverapp[done] = found
                return f": {dict(found)}"

            trainer, step = GuardTrainer(job, exchange), (job.aggregation, job.optimiser)
            with owner_only(), trainer.recorded(self._out, resume=self._resume) as part:
                evaluated(part.state.next_round)
                run_rounds([part], trainer, [step], callbacks=(RoundPrinter(evaluated),))
            self.run = part.run
            result.arrays = arrays.record(part.state.parameters.numpy())
            for words in part.run.warnings:
                print(f"note: {visible(words)}", flush=True)
            print(f"dpcohort: finished, {part.run.rounds_done} rounds. dpcohort verify {self._out}")
            return result
        except (DpcohortError, MemoryError, RecursionError) as error:
            raise told(error) from None

    def _problems(self, job: FederatedJob, client: str, hello: Hello) -> list[str]:
        size = int(self.plan.population.sizes[self.plan.population.index_of(client)])
        if (hello.records == 1) != (size == 1):
            found = "the client as a whole" if hello.records == 1 else "its records"
            return [
                f"its mod protects {found}, and the plan is for {size} record{'s' * (size > 1)}: "
                "records need PrivacyMod(records=..., network=...) and their number as the size, "
                "whole clients PrivacyMod() and the size 1"
            ]
        return disagreements(job, client, hello, resume=self._resume)

    def configure_train(self, *arguments: Any, **named: Any) -> Any:
        """Not by itself: only whole plans are executed, by :meth:`start`."""
        raise InputError.because(
            "PrivacyAwareStrategy executes its plan by its own start(): it cannot be inside of "
            "another strategy, which would clip or add noise a second time. Nothing was asked."
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


def _check_plan(plan: Plan) -> None:
    """Refuse plans that no mod can keep.

    Raises:
        InputError: naming what to plan instead.
    """
    if not plan.is_simple:
        raise InputError.because(
            "mods execute plans with fixed cohorts, local noise and no run before them; "
            "distributed noise, rules that choose from reports and later parts of a run need "
            "guards: dpcohort flower init."
        )
    check_no_public_client(plan, "a mod sends")
    whole = bool((plan.sampling_rates[plan.drawn] == 1.0).all())
    steps, relation = plan.training.local_steps, plan.contract.neighbours
    if unit_of(plan) == "client" and not (whole and steps == 1 and relation == "replace-one"):
        raise InputError.because(
            "every client of the plan has size 1, so clients as a whole are protected, and that "
            "needs training.sampling_rate = 1, training.local_steps = 1 and privacy.neighbours = "
            f"'replace-one' (here {'1' if whole else 'less'}, {steps} and {relation!r}): whatever "
            "a client's data are exchanged for, its clipped update moves by up to 2C."
        )


def _check_arrays(arrays: _Arrays) -> None:
    """Refuse a model that noise breaks."""
    running = [name for name in arrays.like if name.endswith("running_var")]
    if running:
        raise InputError.because(
            f"the app sends {running[0]}, a variance that BatchNorm keeps of its records: with "
            "noise it may be below 0. Use GroupNorm, or keep it out of the arrays that are sent."
        )


def _agreed(nodes: _Nodes, plan: Plan, drawn: Sequence[str], *, timeout: float) -> dict[str, Hello]:
    """What the owners of the drawn clients accepted, when all of them are there.

    Raises:
        InputError: a node without a mod or a ledger, a client the plan does not know, one name
            twice, or a drawn client that does not come.
    """
    deadline, waited = time.monotonic() + timeout, list[str]()
    while True:
        nodes.nodes()  # asks those that have come since
        problem = _problem(nodes.answers, plan)
        hellos = {said.dataset: said for said in nodes.answers.values() if isinstance(said, Hello)}
        missing = [client for client in drawn if client not in hellos]
        if not problem and not missing:
            return {client: hellos[client] for client in drawn}
        if not problem and missing != waited:
            print(f"dpcohort: waiting for {some(missing)}", flush=True)
            waited = missing
        if not problem and time.monotonic() > deadline:
            late = f"did not come online within {timeout:g} s."
            problem = f"{some(missing)}, whom the plan draws, {late}"
        if problem:
            raise InputError.because(f"{problem} Nothing was asked and nothing spent.")
        time.sleep(_POLL)


def _problem(answers: Mapping[int, Hello | str | None], plan: Plan) -> str:
    """Why a plan cannot begin with the nodes that answered so; empty if it can."""
    for node, said in answers.items():
        if isinstance(said, str):
            return (
                f"node {node} cannot take part: {one_line(said).rstrip('.')}. Every client's app "
                "needs PrivacyMod in ClientApp(mods=[...])."
            )
    known = set(plan.population.ids)
    names = sorted(said.dataset for said in answers.values() if isinstance(said, Hello))
    for name in names:
        if name not in known:
            return (
                f"a node says that it is {one_line(name)!r}, whom the plan does not know. Its "
                f"clients are {some(plan.population.ids)}. Start the node under one of their "
                "names, or plan with this client."
            )
    for name in names:
        if names.count(name) > 1:
            return (
                f"two nodes say that they are {one_line(name)!r}. Each client needs a name and a "
                "ledger of its own."
            )
    return ""
