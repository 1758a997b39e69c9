import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only


class ReportPublisher(Callback):
    """Sends the validation report to the team's tracker, keeps it on disk when that is not possible."""

    def __init__(self, url, out, waits=(3, 18)):
        self.url = url
        self.out = Path(out)
        self.waits = waits
        self.offline = False

    @rank_zero_only
    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        report = {k: round(float(v), 5) for k, v in trainer.callback_metrics.items()}
        report["epoch"] = trainer.current_epoch
        print(f"publishing report of epoch {trainer.current_epoch}", flush=True)
        if self.offline or not self._post(report):
            self.offline = True
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / f"report-{trainer.current_epoch}.json").write_text(json.dumps(report))
            print(f"report kept in {self.out}", flush=True)

    def _post(self, report):
        body = json.dumps(report).encode()
        for wait in self.waits:
            try:
                req = urllib.request.Request(self.url, data=body, headers={"Content-Type": "application/json"})
                urllib.request.urlopen(req, timeout=5).read()
                return True
            except (urllib.error.URLError, OSError) as err:
                print(f"tracker not reachable ({err}), next try in {wait}s", flush=True)
                time.sleep(wait)
        return False
