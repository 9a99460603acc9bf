# SPDX-License-Identifier: Apache-2.0
"""Texts of a kit that people read: a page for the operator and one for each client's owner."""

from __future__ import annotations

__all__ = ["operator_page", "owner_page"]


def operator_page(*, run: str, host: str, gate: int, superlink: int, clients: int) -> str:
    """The page of whoever runs the server.

    Example:
        >>> operator_page(run="spring", host="fl.example.org", gate=443, superlink=8000,
        ...               clients=3).splitlines()[0]
        '# The run "spring": for the operator'
    """
    return f"""# The run "{run}": for the operator

You run the server. You see public things (sizes, budgets, who is drawn when) and updates that carry
their noise already. The clients' guards refuse whatever their owners did not accept.

| folder | what it is | who gets it |
|---|---|---|
| `app/` | the Flower app; Flower sends it to every client | everyone |
| `server/` | plan, federation, certificates, units | stays with you |
| `clients/NAME/` | terms, CA certificate, node key, units, a page | the owner of NAME alone |

The keys and certificates in here are for a trial: each owner should make its own node key
(`ssh-keygen -t ecdsa -b 384 -N "" -f node.key`) and send you `node.pub`, which goes into [clients]
of `server/federation.toml`; the certificates should come from your own authority.

## Once
1. Install `dpcohort[flower]` into /opt/dpcohort, copy `server/` to /srv/dpcohort (owner
   `dpcohort-server`, mode 0700), the units to /etc/systemd/system, and start `dpcohort-superlink`.
   `flwr/config.toml` names ca.crt where this kit lies: change that to /srv/dpcohort/tls/ca.crt.
2. Close the door: either `nginx.conf` or `dpcohort-gate.service`. The SuperLink itself listens on
   127.0.0.1:{superlink} alone. **Never open that port**: the open-source SuperLink also serves its
   operator's calls there and asks for no credential, so whoever reaches it can run code on every
   client. From outside, only `POST https://{host}:{gate}/v1/fleet/...` answers; check it:

       curl --cacert ca.crt https://{host}:{gate}/docs             # 403
       curl --cacert ca.crt -X POST https://{host}:{gate}/v1/control/list-runs    # 403

3. Register the {clients} nodes, on the server:

       export FLWR_HOME=/srv/dpcohort/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
       flwr supernode register NAME.pub dpcohort --name NAME

## The run
    flwr run app dpcohort --stream --run-config \\
        'federation="/srv/dpcohort/federation.toml" out="/srv/dpcohort/run"'
    dpcohort verify /srv/dpcohort/run

Before the first draw every client's guard is asked what its owner accepted. If a client is not
there or its terms do not cover the plan, the run ends with a message and nothing is spent.

## When something dies
Flower does not go on with a run whose server or SuperLink was killed; dpcohort does. Start the same
command again with `resume=true` in the run-config. The run has the same name, so the draws have the
same names: guards send updates they have stored and compute only what was never asked for.

| what died | what to do | what it costs |
|---|---|---|
| SuperLink, server app | start the run again with `resume=true` | nothing |
| a SuperNode | systemd starts it; it is let in within a minute | nothing, if the round lasts |
| a guard | systemd starts it | at most the draw it was computing |
| a client for good | nothing; its draws are lost and stay counted | its part of the rounds |

`exchange.jsonl` in the run folder tells of each round what came, what came from a client's ledger
and what was lost. Treat `state.db` as confidential: it holds updates (with their noise).
"""


def owner_page(client: str, *, run: str, host: str, port: int) -> str:
    """The page of whoever owns a client's data."""
    return f"""# The run "{run}": for the owner of {client}

Your data never leave your machine. A *guard*, which you start, holds them together with a ledger
of everything they have ever spent. A *SuperNode* (Flower's client) runs whatever code the server
ships; it can ask the guard for noisy updates and gets them only within `terms.toml`. So read that
file: it is yours, the server cannot change it, and every number in it is explained there.

1. Make two users, `dpcohort-guard` and `flower`, and install `dpcohort[flower]` into /opt/dpcohort.
   Two users, because code of the server runs as `flower` and must not be able to open your data.
2. `terms.toml` to /etc/dpcohort-guard (owner `dpcohort-guard`, mode 0600). Change what you do not
   agree with: a larger noise, fewer draws, a smaller epsilon. The server is told before anything is
   spent. `allowed_users` names the user of the SuperNode.
3. Your data to /var/lib/dpcohort-guard/data.npz (mode 0600): `inputs`, one record a row, and
   `labels`.
4. `node.key` and `ca.crt` to /etc/flower (owner `flower`, mode 0600). The SuperNode's unit puts
   `flower` into the group of the guard's socket; it opens nothing else of the guard's. The key is
   who you are to the server: keep it to yourself, or better make your own and send only `node.pub`.
5. Make the ledger, once, as `dpcohort-guard`, who must be able to write /etc/dpcohort-guard:

       dpcohort guard pin --terms /etc/dpcohort-guard/terms.toml \\
           --ledger /var/lib/dpcohort-guard/client.ledger --new-ledger

   Its id is written into your terms: a guard that finds no ledger, or another one, does not start,
   for an empty ledger would let everything be spent again. Keep copies of it
   (`dpcohort ledger export --backup`).
6. Start `dpcohort-guard.service` and `dpcohort-supernode.service`. The guard first times a draw of
   all your records; if `answer_seconds` is shorter it says what to set and does not start, because
   the time of an answer would tell how many records were drawn.

The units hide the guard's processes from `flower` (ProtectProc, ProcSubset, InaccessiblePaths), who
could otherwise read from its processor time how large the batches are. Without systemd, mount /proc
with `hidepid=invisible`, or run the SuperNode in a container of its own.

The SuperNode connects to {host}:{port} and needs no open port of yours. What the server ships might
try other addresses; the unit says how to close them.

    dpcohort ledger show /var/lib/dpcohort-guard/client.ledger       # what was spent, ever
    dpcohort ledger verify /var/lib/dpcohort-guard/client.ledger     # that nobody changed it
    dpcohort ledger receipt /var/lib/dpcohort-guard/client.ledger --dataset NAME --out receipt.json

The ledger counts a draw before it is computed. A crash may lose a draw's update, never its count.
Never restore an old ledger: the guard notices and answers nothing. To leave the run, stop the
guard.
"""
