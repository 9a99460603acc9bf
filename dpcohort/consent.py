# SPDX-License-Identifier: Apache-2.0
"""Consent to third-party code: which ``module:name`` of a file may be imported, and by whose leave.

A file may come from anybody, so a name in it loads nothing by itself. Code is loaded if the user
typed its name on the command line, if the user's own program allowed its module, or if the user
allowed the module once by ``--allow-code``, which keeps the hash of its file: a file that changed
is asked for again. A module is looked for, and its file is hashed, without importing anything.

The hash of a module is that of its file; of a package, of all Python and extension files in its
folder. What these import in turn is not covered.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, all_suffixes
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

from dpcohort.atomic_file import atomic_writer, owner_only
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_CONFIG, read_bounded
from dpcohort.text_files import parse_json

__all__ = [
    "CodeFile",
    "allow_code",
    "allowances_file",
    "allowed_names",
    "code_of",
    "import_allowed",
    "is_allowed_by",
    "keep_allowance",
    "require_consent",
    "typed",
]

#: Files of a package; a name in a file must not make us read a whole disk.
_MOST_FILES = 20_000
_SUFFIXES = tuple(all_suffixes())
#: Exact names that the user typed, and modules that the user's program allowed, in this process.
_TYPED: set[str] = set()
_MODULES: set[str] = set()


@dataclass(frozen=True)
class CodeFile:
    """The code that a module's name stands for on this machine.

    Attributes:
        module: its first part: the module, or the package that it is in.
        path: its file, or the folder of the package.
        sha256: of that file, or of all Python and extension files in the folder.
    """

    module: str
    path: Path
    sha256: str

    def __str__(self) -> str:
        return f"{self.path} (sha256 {self.sha256[:12]})"


def code_of(module: str) -> CodeFile:
    """The file or folder of a module, found and hashed without importing it.

    Args:
        module: as a file names it; of ``package.module`` the whole package counts.

    Raises:
        InputError: there is none, or it is not made of files.

    Example:
        >>> code_of("yaml_of_nobody")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: there is no module yaml_of_nobody among the installed ...
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise InputError.because(
            f"{top} is a module of Python itself, and has no rule, model, data set or loss."
        )
    with current_folder_importable():
        found = (finder.find_spec(top, None) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
    if spec is None:
        raise InputError.because(
            f"there is no module {top} among the installed packages and in the current folder."
        )
    try:
        if spec.submodule_search_locations is not None:
            folders = [Path(one).resolve() for one in spec.submodule_search_locations]
            return CodeFile(top, folders[0], _folders_sha256(folders))
        path = Path(str(spec.origin)).resolve()
        return CodeFile(top, path, _file_sha256(path))
    except (OSError, IndexError) as error:
        raise InputError.because(
            f"the code of the module {top} is not in files that can be read: {error}."
        ) from None


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folders_sha256(folders: Sequence[Path]) -> str:
    whole, looked_at = hashlib.sha256(), 0
    for folder in folders:
        # A link inside a package is followed by an import, so it is followed here.
        for place, inside, names in os.walk(folder, followlinks=True):
            inside[:] = sorted(name for name in inside if name != "__pycache__")
            code = [Path(place, name) for name in sorted(names) if name.endswith(_SUFFIXES)]
            looked_at += 1 + len(code)
            if looked_at > _MOST_FILES:
                raise InputError.because(
                    f"{folder} has more than {_MOST_FILES:,} folders and code files."
                )
            for path in filter(Path.is_file, code):
                name = path.relative_to(folder).as_posix()
                whole.update(f"{_file_sha256(path)} {name}\n".encode())
    return whole.hexdigest()


def allowances_file() -> Path:
    """The user's file of the modules that were allowed once.

    Raises:
        InputError: the user has no home.

    Example:
        >>> allowances_file().name
        'allowed_code.json'
    """
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    home = given if given.is_absolute() else Path(os.path.expanduser("~")) / ".config"
    if not home.is_absolute():  # never beside the files of somebody
        raise InputError.because("this user has no home; set XDG_CONFIG_HOME to a folder of yours.")
    return home / "dpcohort" / "allowed_code.json"


def keep_allowance(code: CodeFile, file: Path) -> None:
    """Write down that a module's code, as it is now, may be loaded; for nobody else to change.

    Args:
        code: the code.
        file: of allowances.

    Raises:
        InputError: the file cannot be written, or is not a file of allowances.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     code, file = CodeFile("mine", Path("mine.py"), "ab" * 32), Path(folder, "code.json")
        ...     keep_allowance(code, file)
        ...     is_allowed_by(code, file)
        True
    """
    kept = {**_kept(file), str(code.path): {"module": code.module, "sha256": code.sha256}}
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with owner_only(), atomic_writer(file) as out:
            out.write(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise InputError.because(f"{file} cannot be written: {error.strerror or error}.") from None


def is_allowed_by(code: CodeFile, file: Path) -> bool:
    """Whether a file of allowances has this code at this place, as it is now.

    Args:
        code: the code.
        file: of allowances; it need not exist.

    Raises:
        InputError: the file is broken, or others can change it.

    Example:
        >>> is_allowed_by(CodeFile("mine", Path("mine.py"), "ab" * 32), Path("none.json"))
        False
    """
    return _sha256_kept(code, file) == code.sha256


def _sha256_kept(code: CodeFile, file: Path) -> str | None:
    found = _kept(file).get(str(code.path))
    return found["sha256"] if isinstance(found, dict) and "sha256" in found else None


def _kept(file: Path) -> dict[str, Any]:
    try:
        said = file.stat()
        content = read_bounded(file, LARGEST_CONFIG).decode("utf-8")
        kept = parse_json(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError.because(
            f"{file} cannot be read ({error}). Remove it, and allow code again."
        ) from None
    if hasattr(os, "geteuid") and (said.st_uid not in (0, os.geteuid()) or said.st_mode & 0o022):
        raise InputError.because(
            f"others can write to {file}, so what it allows is not yours. Remove it, and allow "
            "code again."
        )
    if not isinstance(kept, dict):
        raise InputError.because(f"{file} is no file of allowances. Remove it.")
    return kept


def allow_code(*modules: str) -> None:
    """Let files name the code of these modules, in this process; for the user's own program.

    Args:
        modules: names of modules or packages.

    Example:
        >>> allow_code("my_rules")
    """
    _MODULES.update(module.partition(":")[0].partition(".")[0] for module in modules)


def typed(*names: str) -> None:
    """Let these very ``module:name`` be loaded, in this process: the user typed them.

    Example:
        >>> typed("my_rules:Quieter")
    """
    _TYPED.update(names)


def allowed_names() -> tuple[list[str], list[str]]:
    """What was typed and what was allowed in this process, for the other ranks of a command.

    Example:
        >>> typed("my_rules:Quieter")
        >>> "my_rules:Quieter" in allowed_names()[0]
        True
    """
    return sorted(_TYPED), sorted(_MODULES)


def require_consent(field: str, text: str) -> None:
    """Refuse a ``module:name`` whose code the user has not allowed; nothing is imported.

    Args:
        field: what it is for, named in errors.
        text: ``module:name``.

    Raises:
        InputError: names the file that would be loaded, its hash, and how to allow it.

    Example:
        >>> require_consent("rule", "subprocess:Popen")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: rule = 'subprocess:Popen' is not allowed: it must be ...
    """
    module = text.partition(":")[0]
    top = module.partition(".")[0]
    ours = top == "dpcohort" and ".__" not in module  # __main__ runs when imported
    if ours or text in _TYPED or top in _MODULES:
        return
    try:
        code = code_of(module)
        before = _sha256_kept(code, allowances_file())
    except InputError as error:
        allowed = "module:name of a module that is there"
        raise InputError(field, given=text, allowed=allowed, next_step=str(error)) from None
    if before == code.sha256:
        return
    changed = "which changed since you allowed it" if before else "which you have not allowed"
    raise InputError.about(
        field,
        f"= {text!r} would run {code}, {changed}. Read it; to allow it until it changes, add to "
        f"the command: --allow-code {top} (in Python: load_config(..., allow_code=[{top!r}]), or "
        "import it in your program).",
    )


def import_allowed(module: str) -> ModuleType:
    """Import a module for which there is consent; those in the current folder are found too.

    Its files, and those of its package, are compiled from what was hashed: bytecode beside them,
    which need not be theirs, is not looked at.

    Args:
        module: its whole name.

    Example:
        >>> import_allowed("dpcohort.schedule").__name__
        'dpcohort.schedule'
    """
    _FromSource.packages.add(module.partition(".")[0])
    if not any(finder is _FromSource for finder in sys.meta_path):
        sys.meta_path.insert(0, _FromSource)
    with current_folder_importable():
        return importlib.import_module(module)


class _SourceLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compiled from the file, without a look at bytecode and without leaving any."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _FromSource:
    """Finds modules of packages that were allowed; those of dpcohort are left to Python."""

    packages: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top not in cls.packages or top == "dpcohort":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _SourceLoader(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """A console script does not have the current folder on its path; a user expects it there.

    Example:
        >>> with current_folder_importable():
        ...     any(place in ("", os.getcwd()) for place in sys.path)
        True
    """
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
