"""Python runs this before the user's program in every process of a job, because the launcher put this folder on
PYTHONPATH. It starts the probe, takes the folder off the path again, and hands over to the environment's own
sitecustomize, if there is one."""

import sys


def _start_probe(here: str) -> None:
    import importlib.machinery
    import importlib.util
    import os

    # The launcher's own copy, whatever the job's environment has installed: page layouts must agree.
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    spec = importlib.machinery.PathFinder.find_spec("rankscope", [root])
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules["rankscope"] = package
    spec.loader.exec_module(package)
    from rankscope.probe import bootstrap

    bootstrap.start()


def _run_next_sitecustomize() -> None:
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _main() -> None:
    here = __file__.rpartition("/")[0]
    sys.path[:] = [entry for entry in sys.path if entry.rstrip("/") != here]
    sys.path_importer_cache.pop(here, None)
    try:
        _start_probe(here)
    except Exception as error:  # noqa: BLE001  the user's program must start whatever happens to the probe
        sys.modules.pop("rankscope", None)
        import os

        note = os.environ.get("RANKSCOPE_PROBE_ERRORS")
        if note:
            with open(note, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}: the probe did not start: {type(error).__name__}: {error}\n")
    _run_next_sitecustomize()


_main()
