# SPDX-License-Identifier: Apache-2.0
"""The deployment kit: a folder with everything for SuperLink, nodes and guards.

::

    README.md              the operator's page
    app/                   the Flower app, which Flower sends to every client
    server/                plan.json, federation.toml, flwr/config.toml, tls/, units, nginx.conf
    clients/NAME/          terms.toml, ca.crt, node.key, node.pub, units, the owner's page

Units say ``Restart=always``, not ``on-failure``: a node whose SuperLink has forgotten it ends
with exit code 0, and one that was killed is refused until its old heartbeat has lapsed, so the
supervisor must try again. systemd also takes dead processes off the list, without which Flower
believes a killed node alive.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from dpcohort._validate import whole_number
from dpcohort.atomic_file import write_text
from dpcohort.clients import Population
from dpcohort.data import Normalisation, PersonTerms
from dpcohort.deploy.flower._certificates import make_certificates, make_node_key
from dpcohort.deploy.flower._federation import Federation, drawn_clients
from dpcohort.deploy.guard._files import write_secret
from dpcohort.deploy.guard._terms import (
    IDENTITY_FILE,
    ModelTerms,
    TableTerms,
    terms_from_plan,
)
from dpcohort.deploy.ledger import ClientLedger, LifetimeCap, RunTerms
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.errors import InputError
from dpcohort.plan import Plan, make_plan
from dpcohort.plugins import is_named_function, named_plugin
from dpcohort.training import Training

_LONGEST = 120
#: What a file of weights is called in a kit.
_WEIGHTS = "weights.safetensors"


def file_name(client: str) -> str:
    """The id with everything escaped that means something in a path; long ones are cut and hashed.

    Example:
        >>> file_name("ward 7/a"), file_name("..")
        ('ward%207%2Fa', '%2E%2E')
    """
    name = quote(client, safe="")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    if len(name) > _LONGEST:
        digest = hashlib.sha256(client.encode()).hexdigest()[:16]
        name = f"{name[:_LONGEST].rpartition('%')[0] or name[:_LONGEST]}-{digest}"
    return name


#: What an owner's files say of data that are no table.
_ARRAYS = {"data": "data.npz", "holds": "`inputs`, one record a row, and\n   `labels`"}
#: What leaves a guard and what the server sees, where noise is not distributed; and where it is.
_UPDATES = {"answers": "noisy updates", "updates": "updates"}
_SUMS = {
    "answers": "masked updates (the server learns the sum of a cohort's, and no client's own)",
    "updates": "sums of updates",
}


def kit_text(name: str, **values: object) -> str:
    """A file of a kit, filled in; the files as they are lie in ``kit_files``.

    All units share ``hardened.conf``: no unit sees processes of other users, or anything of /proc
    but processes, because what the machine's processors do tells how large a guard's batches are.
    It does not say PrivateUsers: a guard asks the kernel who is at the other end of its socket.
    MemoryDenyWriteExecute is not where torch computes, whose convolutions are compiled when they
    are first used.

    Args:
        name: of the file.
        values: what is filled in, by name; more than are needed may be given.

    Example:
        >>> page = kit_text("operator.md", run="spring", host="fl.example.org", gate=443,
        ...                 superlink=8000, clients=3)
        >>> page.splitlines()[0]
        '# The run "spring": for the operator'
    """
    files = resources.files("dpcohort.deploy.flower") / "kit_files"
    values.setdefault("own_model", "")
    values.setdefault("distributed", "")
    if name.endswith(".service"):
        values["hardened"] = (files / "hardened.conf").read_text(encoding="utf-8").rstrip("\n")
        # One line, whatever the client is called; a percent sign means something to systemd.
        values["client"] = " ".join(str(values.get("client", "")).split()).replace("%", "%%")
    return Template((files / name).read_text(encoding="utf-8")).substitute(
        {**_ARRAYS, **_UPDATES, **values}
    )


def client_folder(kit: Path, client: str) -> Path:
    """What one client's owner gets of a kit.

    Example:
        >>> str(client_folder(Path("kit"), "ward 7"))
        'kit/clients/ward%207'
    """
    return kit / "clients" / file_name(client)


def write_kit(
    folder: str | Path,
    *,
    plan: Plan,
    model: ModelTerms,
    run: str,
    normalisation: Normalisation | None = None,
    table: TableTerms | None = None,
    persons: PersonTerms | None = None,
    host: str = "127.0.0.1",
    gate_port: int = 9443,
    superlink_port: int = 8000,
    days: int = 30,
    trial: bool = False,
    members: Mapping[str, str] | None = None,
    **federation: Any,
) -> Path:
    """Write a kit; the folder must not be there, or be empty. All of it is written, or nothing.

    Args:
        folder: where.
        plan: cohorts and noise.
        model: what is trained.
        run: name of the run.
        normalisation: public constants that scale the clients' inputs.
        table: how the clients' tables are read, where their data are tables.
        persons: how the rows of a person are used, of a plan for persons.
        host: name or address by which clients reach the reverse proxy.
        gate_port: where the reverse proxy listens (nginx.conf of the kit).
        superlink_port: where the SuperLink listens, on the loopback address.
        days: how long the certificates are valid.
        trial: guards may be asked by their own user, and answer at once.
        members: where noise is distributed, the public key of each drawn client's identity, which
            its owner has made. In a trial identities are made with the rest of the kit.
        federation: what else :class:`~dpcohort.deploy.flower._federation.Federation` takes:
            ``optimiser``, ``aggregation``, ``seed``, ``timeout``, ``test``, ...

    Returns:
        The folder.

    Raises:
        InputError: a setting cannot be used, the folder is in use, or something cannot be written.
    """
    for name, port in (("gate_port", gate_port), ("superlink_port", superlink_port)):
        whole_number(name, port, at_least=1, at_most=65535)
    if gate_port == superlink_port:
        allowed = "two different ports"
        raise InputError("gate_port, superlink_port", given=gate_port, allowed=allowed)
    if not host or any(c.isspace() or c in "\"'/\\;{}" for c in host):
        raise InputError("host", given=host, allowed="a name or address of the server")
    identities, members = _identities(plan, members, trial=trial)
    if plan.contract.unit.name == "person":
        persons = persons or PersonTerms()
    with _new_folder(folder) as (scratch, target):
        tls = scratch / "server" / "tls"
        tls.mkdir(parents=True)
        hosts = dict.fromkeys([host, "127.0.0.1", "localhost"])
        make_certificates(tls, hosts=list(hosts), days=days)
        values = {"run": run, "host": host, "gate": gate_port, "superlink": superlink_port}
        if table is not None:
            words = "your table, with the\n   columns that [table.columns] of the terms names"
            values |= {"data": "data.csv", "holds": words}
        elif persons is not None or plan.past.paid.kept:
            arrays = ["inputs", "labels", *(["persons"] if persons is not None else [])]
            held = [f"test_{name}" for name in arrays] if plan.past.paid.kept else []
            names = ", ".join(f"`{name}`" for name in (*arrays, *held))
            values["holds"] = f"one row a record in\n   {names}"
        given = model
        if model.weights:  # every part of a kit has them beside its file
            model = model.model_copy(update={"weights": _WEIGHTS})
        code = own_model_files(model.name)
        values["own_model"] = _own_model_words("owner", model.name, code, values)
        if plan.noise.only_sums:
            values |= {**_SUMS, "distributed": kit_text("distributed-owner.md")}
        keys = {}
        for client in drawn_clients(plan):
            terms = terms_from_plan(
                plan,
                client,
                run=run,
                model=model,
                normalisation=normalisation,
                table=table,
                persons=persons,
                allowed_users=() if trial else ("flower",),
                same_user=trial,
                answer_seconds=0.0 if trial else 1.0,
                members=members,
            )
            own = client_folder(scratch, client)
            keys[client] = _write_client(own, terms, {**values, "client": client})
            if client in identities:
                write_secret(own / IDENTITY_FILE, f"{identities[client].hex()}\n".encode())
            _write_code(own, code)
            _copy_weights(given, own)
            shutil.copyfile(tls / "ca.crt", own / "ca.crt")
        said = Federation(
            run=run,
            plan=plan,
            model=model,
            clients=keys,
            members=members,
            persons=persons,
            **{"out": "run", **federation},
        )
        _copy_weights(given, scratch / "server")
        values["own_model"] = _own_model_words("operator", model.name, code, values)
        if plan.noise.only_sums:
            values["distributed"] = _distributed_words(plan, made=bool(identities))
        _write_server(scratch, said, values, final=target.resolve())
        for place in (scratch / "server", scratch / "app"):
            _write_code(place, code)
    return target


def write_app(folder: str | Path, *, rounds: int = 8, clients: int = 3) -> Path:
    """Write a small Flower app that is private by a mod, with a plan and ledgers to try it.

    Args:
        folder: where; it must not be there, or be empty.
        rounds: of the plan.
        clients: how many; they share the digits of scikit-learn.

    Returns:
        The folder.

    Raises:
        InputError: the folder is in use, or cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     sorted(path.name for path in write_app(place, rounds=1).iterdir())
        ['README.md', 'clients.csv', 'ledgers', 'plan.json', 'pyproject.toml', 'quickstart']
    """
    records, delta = 1500, 1e-5
    budgets = [(2.0, 4.0, 8.0)[i % 3] for i in range(clients)]
    whole_number("clients", clients, at_least=1, at_most=100)
    population = Population.from_arrays(
        ids=[str(i) for i in range(clients)],
        sizes=[len(range(i, records, clients)) for i in range(clients)],
        epsilon=budgets,
        delta=delta,
    )
    training = Training(
        rounds=rounds,
        cohort_size=clients,
        local_steps=4,
        sampling_rate=0.2,
        clip=2.0,
        dimension=810,
    )
    plan = make_plan(population, training, seed=0)
    with _new_folder(folder, mode=0o777) as (scratch, target):
        values: dict[str, Any] = {
            key: json.dumps(str(target.resolve() / place))
            for key, place in (("plan", "plan.json"), ("out", "run"), ("ledgers", "ledgers"))
        }
        values |= {"rounds": rounds, "clients": clients, "epsilon": budgets[0], "delta": delta}
        for place in ("quickstart", "ledgers"):
            (scratch / place).mkdir(mode=0o700)
        write_text(scratch / "pyproject.toml", kit_text("quickstart/app.toml", **values))
        write_text(scratch / "README.md", kit_text("quickstart/README.md", **values))
        write_text(scratch / "quickstart" / "__init__.py", '"""A small Flower app."""\n')
        for name in ("task.py", "client_app.py", "server_app.py"):
            write_text(scratch / "quickstart" / name, kit_text(f"quickstart/{name}.txt"))
        population.to_csv(scratch / "clients.csv")
        plan.save(scratch / "plan.json")
        for client, epsilon in zip(population.ids, budgets, strict=True):
            with ClientLedger.create(scratch / "ledgers" / f"{client}.ledger") as ledger:
                ledger.register(client, LifetimeCap(epsilon=epsilon, delta=delta))
                if client in drawn_clients(plan):
                    ledger.accept(client, "quickstart", RunTerms.of_plan(plan, client))
    return target


@contextmanager
def _new_folder(folder: str | Path, *, mode: int = 0o700) -> Iterator[tuple[Path, Path]]:
    """A place to write in, which becomes the folder when the block ends well; and the folder."""
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError.because(f"{target} exists and is not empty. Choose another folder.")
    scratch = target.parent / f".{target.name}.{os.urandom(4).hex()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir(mode=mode)
    except OSError as error:
        raise InputError.because(
            f"{target} cannot be made: {error.strerror or error}. Choose another place."
        ) from None
    try:
        yield scratch, target
        if target.exists():
            target.rmdir()
        os.replace(scratch, target)
    except OSError as error:
        raise InputError.because(f"{target} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _identities(
    plan: Plan, members: Mapping[str, str] | None, *, trial: bool
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Secrets that a trial's kit makes, and public keys; neither where noise is not distributed."""
    if members is not None:
        return {}, {name: members[name] for name in drawn_clients(plan) if name in members}
    if not plan.noise.only_sums:
        return {}, {}
    if not trial:
        raise InputError.because(
            "noise is distributed in this plan, so every client's owner counts on who the others "
            "are. Whoever makes their secrets could be all of them: let each owner make its own "
            "with dpcohort guard identity, and give the public keys with --members FILE.toml, a "
            'line name = "key" for each. (--trial makes secrets for a trial.)'
        )
    made = {client: os.urandom(32) for client in drawn_clients(plan)}
    return made, {client: Identity(secret).public for client, secret in made.items()}


def _copy_weights(model: ModelTerms, folder: Path) -> None:
    if model.weights:
        shutil.copyfile(model.weights, folder / _WEIGHTS)
        os.chmod(folder / _WEIGHTS, 0o644)


def _own_model_words(
    reader: str, name: str, code: Mapping[str, str], values: Mapping[str, object]
) -> str:
    """What a page says of a model that is somebody's own; nothing of one of dpcohort's."""
    if not is_named_function(name):
        return ""
    what, where = f"`{name}`", f" Install the package that has {name.partition(':')[0]}."
    if code:
        what = f"`{', '.join(code)}` (`{name}`)"
        where = (
            "\nPut it into /etc/dpcohort-guard (owner `dpcohort-guard`, mode 0600), from where the "
            "unit starts."
            if reader == "owner"
            else " It lies in `server/`, in `app/` and in every client's folder."
        )
    return kit_text(f"own-model-{reader}.md", **{**values, "what": what, "where": where})


def _distributed_words(plan: Plan, *, made: bool) -> str:
    """What the operator's page says where noise is distributed; if the kit made the identities."""
    identities = (
        "Each owner has made its own with `dpcohort guard identity`, and sent you the\npublic key "
        "alone."
    )
    if made:
        identities = (
            "This kit made them, for a trial: for more, each owner makes its own with\n`dpcohort "
            "guard identity`, keeps it, and sends you the public key, for `--members`."
        )
    size, dropouts = plan.training.cohort_size, plan.contract.dropouts or "none"
    return kit_text(
        "distributed-operator.md", identities=identities, cohort=size, dropouts=dropouts
    )


def own_model_files(name: str) -> dict[str, str]:
    """The file of a model that is a user's own, by its path; empty for one that is installed.

    Args:
        name: of a model: one of dpcohort's, or ``module:function``.

    Example:
        >>> own_model_files("logistic")
        {}
    """
    if not is_named_function(name):
        return {}
    named_plugin("model", name)  # says what is wrong with it
    parts = name.partition(":")[0].split(".")
    file = getattr(sys.modules[".".join(parts)], "__file__", None)
    installed = {
        Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib", "stdlib")
    }
    if file is None or installed & set(Path(file).resolve().parents):
        return {}
    found = {"/".join(parts) + ".py": Path(file)}
    if Path(file).name == "__init__.py":
        found = {"/".join([*parts, "__init__.py"]): Path(file)}
    for depth in range(1, len(parts)):  # packages on the way to it
        above = getattr(sys.modules[".".join(parts[:depth])], "__file__", None)
        if above is not None:
            found["/".join([*parts[:depth], "__init__.py"])] = Path(above)
    try:
        return {place: path.read_text(encoding="utf-8") for place, path in found.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.because(f"the file of the model {name} cannot be read: {error}.") from None


def _write_code(folder: Path, code: Mapping[str, str]) -> None:
    for place, text in code.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / place, text)
        os.chmod(folder / place, 0o600)


def _write_server(
    kit: Path, federation: Federation, values: Mapping[str, object], *, final: Path
) -> None:
    """Write into a scratch folder the operator's part of what will lie in the final one."""
    # A model or rule that is not there, or not the plan's, is refused here, not at the first round.
    from dpcohort.deploy.flower._record import FederatedJob

    beside = federation.model.found_beside(kit / "server" / "federation.toml")
    FederatedJob.of(federation.model_copy(update={"model": beside}))
    server, app = kit / "server", kit / "app"
    federation.plan.save(server / "plan.json")
    write_text(server / "federation.toml", federation.to_toml(plan="plan.json"))
    values = {
        **values,
        "clients": len(federation.fingerprints),
        "federation": json.dumps(str(final / "server" / "federation.toml")),
        "authority": json.dumps(str(final / "server" / "tls" / "ca.crt")),
    }
    named = (federation.model.name, federation.model.predicts.loss, federation.aggregation["rule"])
    modules = sorted({name.partition(":")[0] for name in named if is_named_function(name)})
    # The app is the operator's own program: it allows the code that this kit was made with.
    allowed = f"\nfrom dpcohort.consent import allow_code\n\nallow_code(*{modules})"
    values["allow_code"] = allowed if modules else ""
    for place in (server / "flwr", app / "dpcohort_app"):
        place.mkdir(parents=True)
    write_text(kit / "README.md", kit_text("operator.md", **values))
    write_text(server / "flwr" / "config.toml", kit_text("config.toml", **values))
    for name in ("dpcohort-superlink.service", "dpcohort-run.service", "nginx.conf"):
        write_text(server / name, kit_text(name, **values))
    for name in ("alerts.yml", "dashboard.json"):  # as they are: their own text has dollar signs
        content = (resources.files("dpcohort.deploy.flower") / "kit_files" / name).read_bytes()
        (server / name).write_bytes(content)
    write_text(app / "pyproject.toml", kit_text("app.toml", **values))
    for name in ("__init__.py", "server_app.py", "client_app.py"):
        write_text(app / "dpcohort_app" / name, kit_text(f"app/{name}.txt", **values))
    os.chmod(server, 0o700)


def _write_client(folder: Path, terms: str, values: Mapping[str, object]) -> str:
    """What a client's owner gets; its public key."""
    folder.mkdir(parents=True)
    os.chmod(folder, 0o700)
    write_text(folder / "terms.toml", terms)
    os.chmod(folder / "terms.toml", 0o600)
    for name in ("dpcohort-guard.service", "dpcohort-node.service"):
        write_text(folder / name, kit_text(name, **values))
    write_text(folder / "README.md", kit_text("owner.md", **values))
    return make_node_key(folder / "node.key")
