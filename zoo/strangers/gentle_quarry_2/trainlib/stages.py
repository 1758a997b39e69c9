import contextlib
import time


class StageError(RuntimeError):
    pass


@contextlib.contextmanager
def stage(name, timings):
    """Times a stage and gives any failure in it a name."""
    t0 = time.perf_counter()
    try:
        yield
    except Exception as err:
        raise StageError(f"stage '{name}' failed after {time.perf_counter() - t0:.2f}s") from err
    finally:
        timings[name] = timings.get(name, 0.0) + time.perf_counter() - t0
