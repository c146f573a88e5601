"""CUDA devices land on the CPU: reward processes see no GPU, and many functions put their tensors on `cuda`.

Torch is never imported here. Whatever imports it later meets a hook, which redirects devices as soon as torch is there.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def use_cpu_for_cuda() -> None:
    """From now on, and for torch imported at any time later, `cuda` means the CPU in the thread that imported torch."""
    if "torch" in sys.modules:
        _redirect(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(MetaPathFinder):
    """Finds torch as others would, and redirects its devices once it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None  # not installed: the import fails by itself
        spec.loader = _TorchLoader(spec.loader)
        return spec


class _TorchLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _redirect(module)

    def __getattr__(self, name: str) -> Any:  # get_source, get_data and the like
        return getattr(self._loader, name)


def _redirect(torch: Any) -> None:
    cpu = torch.device("cpu")

    def is_cuda(value: Any) -> bool:
        if isinstance(value, torch.device):
            return bool(value.type == "cuda")
        return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))

    def device(value: Any) -> Any:
        """Where a device is meant: an ordinal is a GPU's too."""
        return cpu if is_cuda(value) or (isinstance(value, int) and not isinstance(value, bool)) else value

    class CpuForCuda(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if "device" in kwargs:
                kwargs["device"] = device(kwargs["device"])
            name = getattr(function, "__name__", "")
            if name == "cuda" and args and isinstance(args[0], torch.Tensor):
                return args[0]
            if name == "pin_memory":
                return args[0]
            if name == "to" and len(args) > 1:
                args = (args[0], device(args[1]), *args[2:])
            elif name == "type" and len(args) > 1 and isinstance(args[1], str):
                args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
            elif function is torch.device and args and is_cuda(args[0]):
                return cpu
            return function(*args, **kwargs)

    set_default_device = torch.set_default_device
    torch.set_default_device = lambda value: set_default_device(device(value))
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = lambda *_, **__: None
    for kind in ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Char", "Byte", "Bool"):
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    CpuForCuda().__enter__()
