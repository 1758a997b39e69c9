"""Python runs this before the user's program in every process of a job, because the launcher put this folder on
PYTHONPATH. It starts the probe, takes the folder off the path again, and hands over to the environment's own
sitecustomize, if there is one."""

import sys

_LOADED_BEFORE = frozenset(sys.modules)


def _main() -> None:
    import os

    here = __file__.rpartition("/")[0]
    sys.path[:] = [entry for entry in sys.path if entry.rstrip("/") != here]
    sys.path_importer_cache.pop(here, None)
    whole = list(sys.path)
    library = os.path.dirname(getattr(os, "__file__", ""))
    first = whole[: whole.index(library)] if library in whole else []
    # What PYTHONPATH names goes before the standard library. It is the program's, and none of it is meant for us.
    sys.path[:] = whole[len(first) :]
    from importlib import machinery, util

    def load(name: str, path: list[str]) -> None:
        spec = machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return
        module = util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)

    try:
        # The launcher's own copy, whatever the job's environment has installed: page layouts must agree.
        load("rankscope", [os.path.dirname(os.path.dirname(os.path.dirname(here)))])
        from rankscope.probe import bootstrap, program_names

        try:
            bootstrap.start()
        finally:
            program_names.give_back(_LOADED_BEFORE, first)
    except Exception as error:  # noqa: BLE001  the user's program must start whatever happens to the probe
        sys.modules.pop("rankscope", None)
        note = os.environ.get("RANKSCOPE_PROBE_ERRORS")
        if note:
            with open(note, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()}: the probe did not start: {type(error).__name__}: {error}\n")
    finally:
        sys.path[:] = whole
    load("sitecustomize", whole)


_main()
