# SPDX-License-Identifier: Apache-2.0
"""Where a model starts: weights from a file, and parts of it that stay as they are.

Weights that were trained on other people's records, or on public ones, cost this training nothing,
and a frozen parameter gets neither gradient nor noise: what is clipped is the gradient of the
trained ones. What the weights were trained on is outside of what this training promises; a
receipt says whose they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpcohort._validate import did_you_mean
from dpcohort.errors import DataMissingError, FileFormatError, InputError, VerificationError
from dpcohort.plain_text import first_of

_SHOWN = 3


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file by name; no code is run.

    Raises:
        DataMissingError: there is no such file.
        FileFormatError: it is not safetensors, or a number in it is not finite.
        InputError: it is the model of a run, which was paid for there and would not be here.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file({"weight": torch.ones(2, 3)}, Path(folder) / "a.safetensors")
        ...     tuple(read_weights(Path(folder) / "a.safetensors")["weight"].shape)
        (2, 3)
    """
    file = Path(path)
    if not file.is_file():
        raise DataMissingError(
            f"there are no weights at {file}. Give a .safetensors file in [model] weights, by its "
            "place from the config's folder."
        )
    if (file.resolve().parent / "run.json").exists():
        raise InputError.because(
            f"{file} is the model of a run: it was trained on the records of its clients, and what "
            "they spent there would not be counted here. If none of them takes part in this "
            "training, copy the file elsewhere and say whose it is in [model] weights_source."
        )
    try:
        found: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(
            file,
            f"is not a safetensors file: {str(error)[:200]}. Files of torch.save can run code and "
            "are not read; write yours with safetensors.torch.save_file(model.state_dict(), ...).",
        ) from None
    for name, tensor in found.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise FileFormatError(file, f"{name!r} has numbers that are not finite.")
    return found


def weights_sha256(path: str | Path, *, expected: str | None = None) -> str:
    """The hash of a file of weights.

    Args:
        path: the file.
        expected: what it must be.

    Raises:
        DataMissingError: there is no such file.
        VerificationError: it is another.
    """
    try:
        with Path(path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataMissingError(f"the weights {path} cannot be read: {error.strerror}.") from None
    if expected is not None and found != expected:
        raise VerificationError(
            f"{path} has the SHA-256 {found[:16]}..., but {expected[:16]}... was agreed on: these "
            "are other weights."
        )
    return found


@torch.no_grad()
def load_weights(model: nn.Module, path: str | Path) -> int:
    """Put the tensors of a file in the place of a model's own, by name.

    The file may hold a part of the model, an encoder for example: the rest keeps its start.

    Args:
        model: changed in place.
        path: the file.

    Returns:
        How many tensors there were.

    Raises:
        DpcohortError: as ``read_weights``, or a name or shape is not the model's.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> model = nn.Linear(3, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file({"weight": torch.ones(2, 3)}, Path(folder) / "a.safetensors")
        ...     load_weights(model, Path(folder) / "a.safetensors")
        1
        >>> float(model.weight.detach().sum())
        6.0
    """
    given, own = read_weights(path), model.state_dict(keep_vars=True)
    if not given:
        raise FileFormatError(path, "holds no tensor.")
    for name, tensor in given.items():
        if name not in own:
            hint = did_you_mean(name, own)
            words = f"has {name!r}, which the model does not.{f' {hint}' if hint else ''}"
            raise FileFormatError(path, f"{words} The model has {first_of(list(own), _SHOWN)}.")
        if tensor.shape != own[name].shape:
            shapes = tuple(tensor.shape), tuple(own[name].shape)
            words = "{!r} has shape {}; the model's is {}.".format(name, *shapes)
            raise FileFormatError(path, words)
        own[name].copy_(tensor)
    return len(given)


def freeze(
    model: nn.Module, prefixes: Sequence[str], *, known: Sequence[str] | None = None
) -> None:
    """Let parts of a model stay as they are: not trained, and run as in evaluation.

    Args:
        model: changed in place.
        prefixes: names of parameters or of the parts that hold them, as ``named_parameters`` has
            them: ``"encoder"`` is ``encoder.0.weight`` and all others that begin so.
        known: names of tensors that came from a file; where given, a frozen parameter that is not
            among them is refused, for it would stay at random.

    Raises:
        InputError: a name fits no parameter, or no file gave a frozen one.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        >>> freeze(model, ["0"])
        >>> [name for name, p in model.named_parameters() if p.requires_grad]
        ['1.weight', '1.bias']
    """
    parameters = dict(model.named_parameters())
    for prefix in prefixes:
        if not isinstance(prefix, str) or not prefix:
            raise InputError("frozen", given=prefix, allowed="names of parameters or parts of them")
        chosen = [name for name in parameters if _within(name, prefix)]
        if not chosen:
            parts = sorted({name.partition(".")[0] for name in parameters} | set(parameters))
            raise InputError.because(
                f"frozen names {prefix!r}, which fits no parameter of the model; it has "
                f"{first_of([*parameters], _SHOWN)}. {did_you_mean(prefix, parts) or ''}".rstrip()
            )
        for name in chosen:
            if known is not None and name not in known:
                raise InputError.because(
                    f"{name!r} is frozen, but the weights file does not have it: it would stay at "
                    "random. Freeze less, or give it in the file."
                )
            parameters[name].requires_grad_(False)
        for path, part in model.named_modules():
            if path and _within(path, prefix):
                part.eval()


def described_weights(
    model: nn.Module,
    *,
    path: str | Path | None = None,
    source: str = "",
    frozen: Sequence[str] = (),
) -> dict[str, Any] | None:
    """What ``run.json`` and receipts say of a start; None where nothing was given or frozen.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> described_weights(model) is None
        True
        >>> _ = model.weight.requires_grad_(False)
        >>> described_weights(model)["frozen_parameters"]
        6
    """
    stay = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    if path is None and not stay:
        return None
    described: dict[str, Any] = {}
    if path is not None:
        described = {
            "file": Path(path).name,
            "sha256": weights_sha256(path),
            "tensors": len(read_weights(path)),
        }
    return {
        **described,
        "source": source,
        "frozen": list(frozen),
        "frozen_parameters": sum(parameter.numel() for parameter in stay),
        **({"frozen_sha256": frozen_sha256(model)} if stay else {}),
    }


def frozen_sha256(model: nn.Module) -> str | None:
    """The hash of all that a model has and training does not change; None if that is no parameter.

    Example:
        >>> frozen_sha256(nn.Linear(3, 2)) is None
        True
    """
    if all(parameter.requires_grad for parameter in model.parameters()):
        return None
    digest = hashlib.sha256()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not tensor.requires_grad:
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix.removesuffix(".") + ".")
