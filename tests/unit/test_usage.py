"""Shares of the machine in use: the kernel's files as Linux writes them, and a made-up NVML."""

from dataclasses import replace

from maskwright.machine import usage
from maskwright.machine.usage import Usage
from maskwright.monitor.status import RunReport
from maskwright.run.directory import Status


class Library:
    """Three GPUs; the last one refuses to tell its rates."""

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 3
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number, handle):
        handle._obj.value = number + 1
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, rates):
        rates._obj.gpu = 20 * (handle.value or 0)
        return 3 if handle.value == 3 else 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total, memory._obj.used = 80, 10 * (handle.value or 0)
        return 0


def test_shares_are_those_of_the_kernel(tmp_path):
    stat, memory = tmp_path / "stat", tmp_path / "meminfo"
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n")
    memory.write_text("MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    250 kB\n")
    busy = Usage(proc=str(tmp_path))
    stat.write_text("cpu  160 0 60 820 60 0 0 0 0 0\n")  # 70 of 100 ticks
    assert busy.take() == {"cpu_share": 0.7, "memory_share": 0.75}
    assert busy.take() == {"memory_share": 0.75}, "no time has passed"
    memory.unlink()
    stat.unlink()
    assert busy.take() == Usage(proc=str(tmp_path)).take() == {}


def test_gpus_are_those_that_the_process_may_use(monkeypatch, tmp_path):
    monkeypatch.setattr(usage.ctypes, "CDLL", lambda name: Library())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shares = Usage(gpus=True, proc=str(tmp_path)).take()
    assert shares == {"gpu_share": 0.3, "gpu_memory_share": 0.25}  # of two that tell, and of three
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert Usage(gpus=True, proc=str(tmp_path)).take() == {"gpu_share": 0.4, "gpu_memory_share": 0.25}
    monkeypatch.undo()
    monkeypatch.setattr(usage, "NVML", "libno-such-library.so")
    assert Usage(gpus=True, proc=str(tmp_path)).take() == {}


def test_a_run_that_trains_says_what_is_in_use():
    busy = {"cpu_share": 0.5, "memory_share": 0.25, "gpu_share": 0.75}
    status = Status(phase="training", step=3, of=9, tokens_per_second=1e4, examples_per_second=120.0, busy=busy)
    running = RunReport("run", "running", "", "", 9.0, status, None)
    assert "120 examples/s" in running.report()
    assert "in use: CPU 50%, memory 25%, GPU 75%" in running.report()
    assert "in use" not in replace(running, state="done").report()
